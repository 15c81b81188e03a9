"""The least and the most that numbers of a call may be, in one table.

Nobody meets a bound by being ambitious; who meets one has slipped, and would otherwise be told by
an overflow, by gigabytes of memory or by a wait without end.
"""

from reprlib import Repr
from typing import Any

from outrider.errors import ConfigError

__all__ = ["BOUNDS", "MOST_THREADS", "broken_bound", "check_bound"]

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
