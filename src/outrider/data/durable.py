"""Files that survive a power cut, and folders that only one process writes."""

import os
from pathlib import Path
from typing import IO

__all__ = ["flush", "lock"]


def flush(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(file: IO[str]) -> bool:
    """Lock a file for as long as it is open; a killed process holds no lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
