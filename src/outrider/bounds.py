"""Ranges of the numbers of a call, and the default number of threads.

The ranges are wide: a value outside is a mistake, which would end in an overflow, gigabytes of
memory or an endless run.
"""

import os
from pathlib import Path
from reprlib import Repr
from typing import Any

from outrider.errors import ConfigError

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
    """Return an error message for a number out of bounds; None if it is within them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None  # types are checked elsewhere
    least, most = BOUNDS[key]
    if least <= value <= most:
        return None
    return f"got {_short.repr(value)}, expected {_show(least)} to {_show(most)}"


def check_bound(key: str, value: int) -> int:
    """Return a number within its bounds, or raise a `ConfigError`."""
    message = broken_bound(key, value)
    if message is not None:
        raise ConfigError(key, message)
    return value


def _show(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


VARIABLE = "OMP_NUM_THREADS"


def default_threads() -> int:
    """Return `OMP_NUM_THREADS`, or the number of physical cores that this process may use."""
    threads = os.environ.get(VARIABLE, "").split(",")[0]
    if threads.isdigit() and int(threads):
        return int(threads)
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return os.cpu_count() or 1
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, len(cores))


def _siblings(cpu: int) -> str:
    """Return the hardware threads of a CPU's core, or the CPU itself if unknown."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return str(cpu)
