"""The least and the most that numbers of a call may be, in one table.

Nobody meets a bound by being ambitious; who meets one has slipped, and would otherwise be told by
an overflow, by gigabytes of memory or by a wait without end.

How many threads a process may well compute with.
"""

import os
from pathlib import Path
from reprlib import Repr
from typing import Any

from outrider.errors import ConfigError

__all__ = ["BOUNDS", "MOST_THREADS", "broken_bound", "check_bound", "default_threads"]

BOUNDS: dict[str, tuple[int, int] | tuple[float, float]] = {
    "max_new_tokens": (1, 1_000_000),
    "min_new_tokens": (0, 1_000_000),
    "beams": (1, 1_000),
    "length_penalty": (-10.0, 10.0),
    "n_best": (1, 1_000),
    "temperature": (1e-6, 1e6),
    "top_k": (1, 1 << 24),
    "top_p": (1e-9, 1.0),
    "seed": (0, 2**64 - 1),
    "gamma": (0.0, 1.0),
    "draft_tokens": (1, 1_024),
    "iterations": (0, 1_000),
    "candidates": (1, 1_000),
    "batch_tokens": (1, 1 << 40),
    "threads": (1, 1_024),
}

MOST_THREADS = int(BOUNDS["threads"][1])

_short = Repr()
_short.maxlong = 40


def broken_bound(key: str, value: Any) -> str | None:
    """Return what is wrong with a number, as one clause; None where it is within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None  # it is no number, and whoever checks types says so
    least, most = BOUNDS[key]
    if least <= value <= most:
        return None
    return f"got {_short.repr(value)}, expected {_show(least)} to {_show(most)}"


def check_bound(key: str, value: int) -> int:
    """Return a number, or raise a `ConfigError` with the range that is accepted."""
    wrong = broken_bound(key, value)
    if wrong is not None:
        raise ConfigError(key, wrong)
    return value


def _show(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


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
