"""Locks between processes; a killed process holds none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import OutriderError
from outrider.files.writing import explained

__all__ = ["locked"]


@contextmanager
def locked(path: Path, busy: OutriderError) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; raise `busy` if another process does.

    The file stays: a lock whose file is removed can be held twice.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        with explained(path):
            lock.acquire(timeout=0)
    except Timeout:
        raise busy from None
    try:
        yield
    finally:
        lock.release()
