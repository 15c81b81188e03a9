"""A folder appears complete or not at all."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.errors import ResourceError
from outrider.files import publish, working_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_appears_at_the_end(tmp_path: Path) -> None:
    with working_folder(tmp_path / "a" / "result") as work:
        (work / "file").write_text("x")
        assert not (tmp_path / "a" / "result").exists()
    assert names(tmp_path / "a") == ["result"]
    assert names(tmp_path / "a" / "result") == ["file"]


def test_it_replaces_an_old_one(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "old").touch()
    with working_folder(tmp_path / "result") as work:
        (work / "new").touch()
    assert names(tmp_path) == ["result"]
    assert names(tmp_path / "result") == ["new"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_interruption_leaves_no_files(tmp_path: Path, error: type[BaseException]) -> None:
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
def test_a_full_disk_gives_one_error_message(tmp_path: Path, code: int, message: str) -> None:
    with pytest.raises(ResourceError, match=message), working_folder(tmp_path / "result"):
        raise OSError(code, os.strerror(code))
    assert names(tmp_path) == []


def test_a_file_instead_of_a_folder_gives_one_error_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ResourceError, match=r"result: cannot be written: (File exists|Not a dir)"),
        working_folder(tmp_path / "file" / "result"),
    ):
        pass


def test_other_system_errors_are_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError), working_folder(tmp_path / "result"):
        raise ConnectionError


KILLED = """
import os, sys, time
from pathlib import Path
from outrider.files import working_folder
with working_folder(Path(sys.argv[1])) as work:
    (work / "file").touch()
    print("ready", flush=True)
    time.sleep(60)
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_folders_of_killed_processes_are_removed(
    tmp_path: Path,
) -> None:
    living, killed = start(tmp_path / "result"), start(tmp_path / "result")
    killed.kill()
    killed.communicate()
    assert len(names(tmp_path)) == 4  # two folders, two locks
    with working_folder(tmp_path / "result"):
        pass
    assert len(names(tmp_path)) == 3  # the result, and the folder and lock of the running process
    living.kill()
    living.communicate()
    with working_folder(tmp_path / "result"):
        pass
    assert names(tmp_path) == ["result"]


def test_a_process_with_the_id_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a restarted container, process ids repeat."""
    killed = start(tmp_path / "result")
    killed.kill()
    killed.communicate()
    monkeypatch.setattr(os, "getpid", lambda: killed.pid)
    with working_folder(tmp_path / "result") as work:
        (work / "new").touch()
    assert names(tmp_path) == ["result"]
    assert names(tmp_path / "result") == ["new"]


def test_the_old_folder_is_restored_if_the_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, work = tmp_path / "result", tmp_path / "work"
    for path in (folder, work):
        path.mkdir()
        (path / path.name).touch()
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path == work:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="Input/output error"):
        publish(work, folder)
    assert names(tmp_path) == ["result", "work"]
    assert names(folder) == ["result"]


def test_the_old_folder_is_restored_after_a_kill_between_the_renames(tmp_path: Path) -> None:
    killed = start(tmp_path / "result")
    killed.kill()
    killed.communicate()
    work = next(path for path in tmp_path.iterdir() if path.is_dir())
    old = work.with_name(f"{work.name}-old")
    old.mkdir()
    (old / "precious").touch()
    with pytest.raises(ValueError, match="stop"), working_folder(tmp_path / "result"):
        raise ValueError("stop")
    assert names(tmp_path) == ["result"]
    assert names(tmp_path / "result") == ["precious"]
