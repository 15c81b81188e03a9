"""Writing files: complete or not at all, and one error message if the disk refuses."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.errors import ResourceError
from outrider.files import explained, locked, replacing, write_bytes, write_json, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with replacing(path) as file:
        file.write("text\n")
        assert not path.exists()
    assert path.read_text() == "text\n"
    assert names(path.parent) == ["file"]


def test_an_interruption_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def stop() -> None:
        with replacing(path) as file:
            file.write("after")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert path.read_text() == "before"
    assert names(tmp_path) == ["file"]


def test_a_link_is_followed_and_permissions_are_kept(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target = tmp_path / "far" / "file"
    target.write_text("before")
    target.chmod(0o640)
    (tmp_path / "link").symlink_to(target)
    write_text(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink()
    assert target.read_text() == "after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_new_file_has_the_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_json(tmp_path / "ours", {"a": "ü"})
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "ours").read_text() == '{\n  "a": "ü"\n}\n'


def test_bytes_replace_a_file_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "picture"
    write_bytes(path, b"\x00\n\xff")
    assert path.read_bytes() == b"\x00\n\xff"
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(ResourceError, match="picture is as it was"):
        write_bytes(path, b"other")
    assert path.read_bytes() == b"\x00\n\xff"
    assert list(path.parent.iterdir()) == [path]


def test_it_is_flushed_before_and_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, replace = os.fsync, Path.replace

    def note_fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        events.append(f"fsync {kind}")
        fsync(descriptor)

    def note_replace(path: Path, target: Path) -> Path:
        events.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_replace)
    write_text(tmp_path / "file", "text")
    assert events == ["fsync file", "rename", "fsync folder"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("[enforce fail] . PytorchStreamWriter failed writing file data/0"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 656"),
        Exception("I/O error: No space left on device (os error 28)"),
    ],
    ids=["system", "torch", "torch again", "rust"],
)
def test_a_full_disk_names_the_file_and_its_state(tmp_path: Path, error: Exception) -> None:
    path = tmp_path / "file"
    message = f"^{path}: the disk is full .*; nothing was written;"
    with pytest.raises(ResourceError, match=message), explained(path):
        raise error
    path.write_text("before")
    message = f"the disk is full .*; {path} is as it was; free"
    with pytest.raises(ResourceError, match=message), explained(path):
        raise error


def test_failed_writes_give_one_error_message(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match="folder: cannot be written: Is a directory"):
        write_text(tmp_path / "folder", "")
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=r"below: cannot be written: (Not a dir|File exists)"):
        write_text(tmp_path / "file" / "below", "")
    with pytest.raises(ResourceError, match="cannot be written: File name too long"):
        write_text(tmp_path / ("x" * 300), "")


def test_an_error_names_the_requested_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "out.txt"
    with pytest.raises(FileNotFoundError) as error, replacing(path):
        shutil.rmtree(path.parent)
    assert error.value.filename == str(path)
    assert error.value.filename2 is None


def test_other_errors_are_unchanged(tmp_path: Path) -> None:
    for error in (ValueError("no"), RuntimeError("no"), ConnectionError("no")):
        with pytest.raises(type(error), match="no"), explained(tmp_path):
            raise error


HOLDER = """
import sys, time
from pathlib import Path
from outrider.files import locked
with locked(Path(sys.argv[1]), ValueError("held")):
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_released_when_its_process_ends(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    busy = ResourceError("somebody else works here")
    with pytest.raises(ResourceError, match="somebody else"), locked(path, busy):
        pass
    holder.kill()
    holder.communicate()
    with locked(path, busy):
        pass


def test_a_lock_that_cannot_be_created_gives_one_error_message(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    busy = ResourceError("somebody else works here")
    message = r"\.lock: cannot be written: Is a directory"
    with pytest.raises(ResourceError, match=message), locked(tmp_path / ".lock", busy):
        pass
