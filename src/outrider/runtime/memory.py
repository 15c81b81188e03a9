"""Peak memory of this process, as the operating system counts it.

Linux can reset its count (`VmHWM`), so that a peak is that of one step. Elsewhere it is the peak
since the process started (`getrusage`).
"""

import sys
from contextlib import suppress
from pathlib import Path

from outrider.errors import UnsupportedError

__all__ = ["peak_bytes", "reset_peak", "resident_bytes"]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes() -> int:
    """Return the most memory this process has held since `reset_peak`, or since it started."""
    held = _read_status("VmHWM")
    if held is not None:
        return held
    try:
        import resource
    except ImportError:  # Windows
        message = "measuring memory needs getrusage, which this system does not have"
        raise UnsupportedError(message) from None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int:
    """Return the memory this process holds now; its peak where the system tells no more."""
    held = _read_status("VmRSS")
    return peak_bytes() if held is None else held


def reset_peak() -> None:
    """Let the peak start from what is held now, where the system can do that."""
    with suppress(OSError):
        _CLEAR.write_text("5", encoding="ascii")


def _read_status(name: str) -> int | None:
    """Return a value of /proc/self/status in bytes; None on other systems than Linux."""
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = (int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    return next(found, None)
