"""The cache folder, for packed weights and unpacked packages."""

import os
import sys
from pathlib import Path

VARIABLE = "OUTRIDER_CACHE"
"""Environment variable: the folder of the cache, or `off`."""


def cache_folder() -> Path | None:
    """Return the cache folder; None if the cache is off or there is no home folder."""
    folder = os.environ.get(VARIABLE)
    if folder in ("", "off"):
        return None
    default = {
        "win32": os.environ.get("LOCALAPPDATA") or "~/AppData/Local",
        "darwin": "~/Library/Caches",
    }.get(sys.platform, os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        if folder is None:
            return Path(default).expanduser() / "outrider"
        return Path(folder).expanduser()
    except RuntimeError:  # `~` or `~user` has no home folder
        return None
