"""A folder appears whole or not at all."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.data.working_folder import working_folder
from outrider.errors import ResourceError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_appears_at_the_end(tmp_path: Path) -> None:
    with working_folder(tmp_path / "a" / "result") as work:
        (work / "file").write_text("x")
        assert not (tmp_path / "a" / "result").exists()
    assert names(tmp_path / "a") == ["result"]
    assert names(tmp_path / "a" / "result") == ["file"]


def test_it_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "old").touch()
    with working_folder(tmp_path / "result") as work:
        (work / "new").touch()
    assert names(tmp_path) == ["result"]
    assert names(tmp_path / "result") == ["new"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_interruption_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def stop() -> None:
        with working_folder(tmp_path / "result") as work:
            (work / "file").touch()
            raise error

    with pytest.raises(error):
        stop()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "result: the disk is full or a quota is reached; nothing was kept"),
        (errno.EDQUOT, "result: the disk is full or a quota is reached; nothing was kept"),
        (errno.EROFS, "result: cannot be written: Read-only file system"),
    ],
)
def test_a_full_disk_is_one_sentence(tmp_path: Path, code: int, message: str) -> None:
    with pytest.raises(ResourceError, match=message), working_folder(tmp_path / "result"):
        raise OSError(code, os.strerror(code))
    assert names(tmp_path) == []


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ResourceError, match=r"result: cannot be written: (File exists|Not a dir)"),
        working_folder(tmp_path / "file" / "result"),
    ):
        pass


def test_other_errors_of_the_system_pass(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError), working_folder(tmp_path / "result"):
        raise ConnectionError


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    mark = f"result.partial-{socket.gethostname()}-"
    for name in (f"{mark}{gone.pid}", f"{mark}{os.getppid()}", "result.partial-elsewhere-1"):
        (tmp_path / name).mkdir()
    with working_folder(tmp_path / "result"):
        pass
    assert names(tmp_path) == sorted(
        ["result", f"{mark}{os.getppid()}", "result.partial-elsewhere-1"]
    )
