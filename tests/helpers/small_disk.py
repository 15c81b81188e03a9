"""A disk of a few megabytes, for tests of a full disk."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BALLAST = ".ballast"


@contextmanager
def small_disk(folder: Path, size: str = "4m") -> Iterator[Path]:
    """Mount a file system in memory; skip the test if that is not allowed."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here (it needs root on Linux)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, *, leave: int) -> None:
    """Leave only `leave` bytes free."""
    (disk / BALLAST).unlink(missing_ok=True)
    free = shutil.disk_usage(disk).free
    with (disk / BALLAST).open("wb") as file:
        file.write(bytes(max(0, free - leave)))
