"""Peak memory of this process.

Linux can reset its counter (`VmHWM`) to measure one step; other systems report the peak since the
process started (`getrusage`).
"""

import sys
from contextlib import suppress
from pathlib import Path

from outrider.errors import UnsupportedError

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes() -> int:
    """Return the peak memory of this process since `reset_peak`, or since it started."""
    peak = _read_status("VmHWM")
    if peak is not None:
        return peak
    try:
        import resource
    except ImportError as error:  # Windows
        message = "measuring memory needs getrusage, which this system does not have"
        raise UnsupportedError(message) from error
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int:
    """Return the current memory of this process; its peak on other systems than Linux."""
    resident = _read_status("VmRSS")
    return peak_bytes() if resident is None else resident


def reset_peak() -> None:
    """Reset the peak to the current memory, on Linux."""
    with suppress(OSError):
        _CLEAR.write_text("5", encoding="ascii")


def _read_status(name: str) -> int | None:
    """Return a value of /proc/self/status in bytes; None on other systems than Linux."""
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    values = (int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    return next(values, None)
