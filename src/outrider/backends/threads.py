"""How many threads a process may well compute with."""

import os
from pathlib import Path

__all__ = ["default_threads"]

VARIABLE = "OMP_NUM_THREADS"


def default_threads() -> int:
    """Return what `OMP_NUM_THREADS` says, or the cores this process may use, each counted once."""
    said = os.environ.get(VARIABLE, "").split(",")[0]
    if said.isdigit() and int(said):
        return int(said)
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return os.cpu_count() or 1
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, len(cores))


def _siblings(cpu: int) -> str:
    """Name the core that a processor of the system belongs to; itself where nothing is said."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return str(cpu)
