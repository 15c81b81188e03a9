"""Write a folder so that it appears complete or not at all.

`result.partial-1f2e3d`        where a process writes, kept alive by the lock beside it
`result.partial-1f2e3d.lock`   held by that process; free if it died, and these are leftovers
`result.partial-1f2e3d-old`    the folder that is being replaced, for the moment between two renames
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from outrider.files.writing import explained, flush

__all__ = ["publish", "remove_leftovers", "working_folder"]


@contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to work in next to `folder`; it takes its place at the end, or vanishes."""
    from filelock import FileLock

    kept = f"{folder} is as it was" if folder.exists() else "nothing was kept"
    with explained(folder, kept):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        work = folder.with_name(f"{folder.name}.partial-{uuid4().hex[:12]}")
        lock = FileLock(_lock_file(work))
        lock.acquire(timeout=10)  # a search for leftovers may hold it for a moment
        try:
            work.mkdir()
            yield work
            publish(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            _lock_file(work).unlink(missing_ok=True)
            lock.release()


def publish(work: Path, folder: Path) -> None:
    """Flush every file of `work` and make it `folder`, in place of one that is there.

    Between the two renames of a replacement there is no `folder`: a process that is killed just
    then leaves the old one under another name, and the next `working_folder` puts it back.
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
    """Remove what killed processes left behind, and put back what one was about to replace."""
    from filelock import FileLock, Timeout

    for lock_file in folder.parent.glob(f"{_escaped(folder.name)}.partial-*.lock"):
        work = lock_file.with_suffix("")
        lock = FileLock(lock_file)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue  # somebody is at work there
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
