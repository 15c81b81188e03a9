"""Atomic writing of files and folders, also after a kill, a power cut or on a full disk; locks.

A file is written under another name in the same folder, flushed and renamed; then its folder is
flushed, which makes the rename durable. A folder is written under another name and renamed:

`result.partial-1f2e3d`        the new folder
`result.partial-1f2e3d.lock`   locked while its process runs; if it is free, these are leftovers
`result.partial-1f2e3d-old`    the replaced folder, between two renames
"""

import errno
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from outrider.errors import OutriderError, ResourceError

OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NOT_ALLOWED = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTEMPTY),
}
_OS_ERROR = re.compile(r"os error (\d+)|\[Errno (\d+)\]")
"""Error numbers in messages of libraries that do not raise OSError (safetensors, pyarrow)."""
_TORCH_WRITER = re.compile(r"PytorchStreamWriter failed writing|inline_container.*unexpected pos")
"""Messages of torch.save for a full disk."""


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as file:
        file.write(text)


def write_json(path: Path, values: Any) -> None:
    """Write values as an indented JSON file atomically."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file of bytes atomically."""
    with _staged(path) as descriptor, os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Yield a text file to write; it replaces `path` at the end, or is removed after an error.

    The target of a link is replaced, and the link stays.
    """
    with (
        _staged(path) as descriptor,
        os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _staged(path: Path) -> Iterator[int]:
    """Yield the descriptor of a new file to write and close; it then replaces `path`."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        place = path.resolve()
        descriptor, name = tempfile.mkstemp(prefix=f".{place.name[:64]}.", dir=place.parent)
        staging = Path(name)
        try:
            yield descriptor
            put(staging, place)
        except BaseException as error:
            with suppress(OSError):
                staging.unlink()
            if isinstance(error, OSError) and error.filename == name:
                error.filename, error.filename2 = str(path), None
            raise


def put(staging: Path, place: Path) -> None:
    """Replace a file by a finished one, with the same permissions."""
    _copy_mode(place, staging)
    staging.replace(place)
    flush(place.parent)


@contextmanager
def explained(path: Path, left: str = "") -> Iterator[None]:
    """Convert errors of writing; messages name the file, the reason and what is left."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        code = _code(error)
        there = os.path.lexists(path)
        left = left or (f"{path} is as it was" if there else "nothing was written")
        if code in OUT_OF_SPACE:
            raise ResourceError(
                f"{path}: the disk is full or a quota is reached; {left}; free some space and "
                "run the command again"
            ) from error
        if code in NOT_ALLOWED:
            message = f"{path}: cannot be written: {os.strerror(code)}; {left}"
            raise ResourceError(message) from error
        raise
    except Exception as error:
        # Libraries in Rust wrap errors of the system in their own types.
        if _code(error) not in OUT_OF_SPACE | NOT_ALLOWED:
            raise
        with explained(path, left):
            raise OSError(_code(error), str(error)) from error


def flush(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        if os.name == "nt":  # folders cannot be opened and need no flush
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _code(error: BaseException) -> int:
    """Return the error number of an exception, or 0."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    if _TORCH_WRITER.search(text):
        return errno.ENOSPC
    match = _OS_ERROR.search(text)
    return int(match[1] or match[2]) if match else 0


def _copy_mode(place: Path, staging: Path) -> None:
    """Give a new file the permissions of the replaced one, or the default ones."""
    try:
        mode = place.stat().st_mode & 0o7777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    staging.chmod(mode)


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write beside `folder`; it replaces `folder` at the end, or is removed."""
    from filelock import FileLock

    left = f"{folder} is as it was" if folder.exists() else "nothing was kept"
    with explained(folder, left):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        work = folder.with_name(f"{folder.name}.partial-{uuid4().hex[:12]}")
        lock = FileLock(_lock_file(work))
        lock.acquire(timeout=10)  # `remove_leftovers` of another process holds it briefly
        try:
            work.mkdir()
            yield work
            publish(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            _lock_file(work).unlink(missing_ok=True)
            lock.release()


def publish(work: Path, folder: Path) -> None:
    """Flush every file of `work` and rename it to `folder`, which is replaced if it exists.

    A process that is killed between the two renames of a replacement leaves the old folder under
    another name; the next `working_folder` restores it.
    """
    for path in sorted(work.rglob("*")):
        if path.is_file() or path.is_dir():
            flush(path)
    flush(work)
    old = work.with_name(f"{work.name}-old")
    if folder.exists():
        folder.rename(old)
    try:
        work.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise
    flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove leftovers of killed processes, and restore a folder that one was replacing."""
    from filelock import FileLock, Timeout

    for lock_file in folder.parent.glob(f"{_escaped(folder.name)}.partial-*.lock"):
        work = lock_file.with_suffix("")
        lock = FileLock(lock_file)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue  # another process writes there
        try:
            old = work.with_name(f"{work.name}-old")
            if old.exists() and not folder.exists():
                old.rename(folder)
            for leftover in (work, old):
                shutil.rmtree(leftover, ignore_errors=True)
            lock_file.unlink(missing_ok=True)
        finally:
            lock.release()


def _lock_file(work: Path) -> Path:
    return work.with_name(f"{work.name}.lock")


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


VARIABLE = "OUTRIDER_CACHE"
"""Environment variable: the folder of the cache, or `off`."""


def cache_folder() -> Path | None:
    """Return the cache folder; None if the cache is off or there is no home folder."""
    folder = os.environ.get(VARIABLE)
    if folder in ("", "off"):
        return None
    default = {
        "win32": os.environ.get("LOCALAPPDATA") or "~/AppData/Local",
        "darwin": "~/Library/Caches",
    }.get(sys.platform, os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        if folder is None:
            return Path(default).expanduser() / "outrider"
        return Path(folder).expanduser()
    except RuntimeError:  # `~` or `~user` has no home folder
        return None


@contextmanager
def locked(path: Path, busy: OutriderError) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; raise `busy` if another process holds it.

    The file stays, because a removed file could be locked twice.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        with explained(path):
            lock.acquire(timeout=0)
    except Timeout as error:
        raise busy from error
    try:
        yield
    finally:
        lock.release()
