"""Where things are kept that can be made again: packed weights, unpacked packages."""

import os
import sys
from pathlib import Path

__all__ = ["VARIABLE", "cache_folder"]

VARIABLE = "OUTRIDER_CACHE"
"""Environment variable: the folder of the cache, or `off`."""


def cache_folder() -> Path | None:
    """Return the cache folder; None where the cache is off or `~` has no home folder."""
    said = os.environ.get(VARIABLE)
    if said in ("", "off"):
        return None
    usual = {
        "win32": os.environ.get("LOCALAPPDATA") or "~/AppData/Local",
        "darwin": "~/Library/Caches",
    }.get(sys.platform, os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        return Path(usual).expanduser() / "outrider" if said is None else Path(said).expanduser()
    except RuntimeError:  # `~` or `~user` has no home folder
        return None
