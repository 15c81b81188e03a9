"""Packed weights, kept so that a second start packs nothing.

They lie beside a model, where `outrider export --to native` puts them, or in a cache of the user's:
`OUTRIDER_CACHE` names its folder, `off` does without, by default it is where the system keeps such
things. A file says which model it was packed from. One that is damaged, or of another model, is as
good as none, and a cache that cannot be written to is no error.
"""

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.errors import OutriderError, ResourceError
from outrider.files.cache import cache_folder
from outrider.formats.folder import Parts, model_files
from outrider.formats.identity import identity

if TYPE_CHECKING:
    import outrider_native

__all__ = ["FILE", "find_packed", "keep_packed", "write_packed"]

FILE = "model.packed"
"""Name of the file that lies beside a model."""
UNUSED_SECONDS = 60 * 24 * 3600
"""How long a file of the cache is kept after it was last used."""


def find_packed(parts: Parts) -> "outrider_native.PackedFile | None":
    """Map the weights that were packed from these parts; None where there are none."""
    from outrider_native import PackedFile

    beside, cached = parts.model.folder / FILE, _place(parts)
    for path in (beside, cached):
        if path is None:
            continue
        with suppress(ValueError, OSError, OutriderError):  # damaged, or not a valid path
            if not path.is_file():
                continue
            found = PackedFile(path)
            if found.about == identity(parts):
                if path == cached:
                    _touch(path)
                return found
    return None


def keep_packed(core: "outrider_native.Model", parts: Parts) -> None:
    """Keep packed weights in the cache, if that can be written to."""
    place = _place(parts)
    if place is None:
        return
    with suppress(OSError, ValueError, OutriderError):
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_unused(place.parent)
        _write(core, parts, place)


def write_packed(core: "outrider_native.Model", parts: Parts) -> Path:
    """Write packed weights beside the model."""
    path = parts.model.folder / FILE
    try:
        _write(core, parts, path)
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def _write(core: "outrider_native.Model", parts: Parts, path: Path) -> None:
    """Write a file whole or not at all; another process may write or map it at the same time."""
    descriptor, draft = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    os.close(descriptor)
    try:
        core.save(draft, identity(parts))
        Path(draft).replace(path)
    finally:
        Path(draft).unlink(missing_ok=True)


def _place(parts: Parts) -> Path | None:
    """Return where in the cache the weights of these very files lie; None for no cache or files."""
    folder = cache_folder()
    if folder is None:
        return None
    digest = hashlib.sha256()
    try:
        for part in (parts.model, parts.drafter, parts.ctc):
            for path in [] if part is None else model_files(part.folder):
                stat = path.stat()
                digest.update(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    except (OSError, RuntimeError, UnicodeError, OutriderError):
        return None
    return folder / f"{digest.hexdigest()[:32]}.packed"


def _touch(path: Path) -> None:
    """Say that a file is still in use, once a day."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > 24 * 3600:
            os.utime(path)


def _remove_unused(folder: Path) -> None:
    for path in folder.glob("*.packed*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                path.unlink()
