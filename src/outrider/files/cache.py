"""Where things are kept that can be made again: packed weights, unpacked packages."""

import os
import sys
from pathlib import Path

__all__ = ["VARIABLE", "cache_folder"]

VARIABLE = "OUTRIDER_CACHE"
"""Environment variable: the folder of the cache, or `off`."""


def cache_folder() -> Path | None:
    """Return where things are kept; None where they are not to be."""
    said = os.environ.get(VARIABLE)
    if said is not None:
        return None if said in ("", "off") else Path(said).expanduser()
    usual = {
        "win32": os.environ.get("LOCALAPPDATA") or "~/AppData/Local",
        "darwin": "~/Library/Caches",
    }.get(sys.platform, os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        return Path(usual).expanduser() / "outrider"
    except RuntimeError:  # there is no home
        return None
