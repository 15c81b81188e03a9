"""Write a folder so that it appears complete or not at all."""

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.data.durable import flush
from outrider.errors import ResourceError

__all__ = ["working_folder"]

OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to work in next to `folder`; it takes its place at the end, or vanishes."""
    mark = f"{folder.name}.partial-{socket.gethostname()}-"
    work = folder.with_name(f"{mark}{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder.parent, mark)
        work.mkdir()
        yield work
        _sync(work)
        _replace(work, folder)
    except OSError as error:
        if error.errno in OUT_OF_SPACE:
            raise ResourceError(
                f"{folder}: the disk is full or a quota is reached; "
                "nothing was kept, free some space and prepare again"
            ) from None
        if error.errno in NOT_ALLOWED:
            raise ResourceError(f"{folder}: cannot be written: {error.strerror}") from None
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_leftovers(parent: Path, mark: str) -> None:
    """Remove what a killed process of this machine left behind."""
    for path in parent.glob(f"{mark}*"):
        pid = path.name.removeprefix(mark)
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(folder: Path) -> None:
    """Make files and their names survive a power cut."""
    for path in [*(p for p in folder.rglob("*") if p.is_file()), folder]:
        flush(path)


def _replace(work: Path, folder: Path) -> None:
    if not folder.exists():
        work.rename(folder)
        return
    old = folder.with_name(f"{work.name}-old")
    folder.rename(old)
    work.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
