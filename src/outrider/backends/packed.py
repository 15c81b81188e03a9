"""Packed weights, kept so that a second start packs nothing.

They lie beside a model, where `outrider export --to native` writes them, or in the user's cache:
`OUTRIDER_CACHE` names its folder, `off` turns it off, by default it is where the system keeps such
files. A file names the model that it was packed from: a checksum of its configs and of all bytes of
its weights. A file that is damaged or was packed from another model is not used. A cache that
cannot be read or written is no error.

The checksum is XXH64: it detects changed weights, not forged ones. That of a weight file is kept in
the cache as well, under the file's path, size, times and inode, so that a start does not read all
weights.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from outrider.errors import OutriderError, ResourceError
from outrider.files.cache import cache_folder
from outrider.formats.folder import Parts, model_files

if TYPE_CHECKING:
    import outrider_native

__all__ = ["FILE", "PackedWeights", "identity"]

FILE = "model.packed"
"""Name of the file that lies beside a model."""
PACKED, CHECKSUM = ".packed", ".checksum"
"""How names of files in the cache end."""
UNUSED_SECONDS = 60 * 24 * 3600
"""How long a file of the cache is kept after it was last used."""
SETTLED_SECONDS = 2
"""A file that was changed since may change again and keep its time; its checksum is not kept."""
ERRORS = (OSError, ValueError, RuntimeError, OutriderError)
"""What an unusable cache or a damaged file causes."""


class PackedWeights:
    """Finds and keeps the packed weights of a model and of the decoders beside it.

    It is made before the weights are packed: they are kept only if the files did not change since.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.identity = identity(parts)

    def find(self) -> "outrider_native.PackedFile | None":
        """Map packed weights whose checksums are right; None where there are none."""
        from outrider_native import PackedFile

        for place in (self._beside, self._cached):
            with suppress(*ERRORS):
                path = place()
                if path is None or not path.is_file():
                    continue
                found = PackedFile(path)
                if found.about != self.identity:
                    continue
                found.verify()
                if place == self._cached:
                    _touch(path)
                return found
        return None

    def keep(self, core: "outrider_native.Model") -> None:
        """Keep packed weights in the cache, if it can be written and the model did not change."""
        with suppress(*ERRORS):
            if (path := self._cached()) is not None:
                _write_cached(path, lambda draft: self._save(core, draft))

    def write(self, core: "outrider_native.Model") -> Path:
        """Write packed weights beside the model."""
        path = self._beside()
        try:
            _write(path, lambda draft: self._save(core, draft))
        except OSError as error:
            raise ResourceError(f"{path}: cannot be written: {error.strerror}") from None
        return path

    def _save(self, core: "outrider_native.Model", path: Path) -> None:
        if identity(self.parts) != self.identity:
            message = "the weights changed while they were packed; run the command again"
            raise ResourceError(f"{self.parts.model.folder}: {message}")
        core.save(path, self.identity)

    def _beside(self) -> Path:
        return self.parts.model.folder / FILE

    def _cached(self) -> Path | None:
        folder = cache_folder()
        return None if folder is None else folder / f"{self.identity[:32]}{PACKED}"


def identity(parts: Parts) -> str:
    """Return a checksum of a model and of the decoders beside it: configs and all weights."""
    digest = hashlib.sha256()
    for part in (parts.model, parts.drafter, parts.ctc):
        if part is None:
            digest.update(b"none")
            continue
        digest.update(repr(part.config).encode())
        for name, weight in part.weights.items():
            digest.update(f"{name} {weight.kind} {weight.shape}".encode())
        # Readers of other families compute weights from the config, too.
        for path in (part.folder / "config.json", *model_files(part.folder)):
            if path.is_file():
                digest.update(_checksum(path).encode())
    return digest.hexdigest()


class _Stamp(NamedTuple):
    """What tells whether a file changed without reading it."""

    path: str
    size: int
    changed_ns: tuple[int, int]
    inode: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> "_Stamp":
        path = path.resolve()
        stat = path.stat()
        times, inode = (stat.st_mtime_ns, stat.st_ctime_ns), (stat.st_dev, stat.st_ino)
        return cls(str(path), stat.st_size, times, inode)

    @property
    def is_settled(self) -> bool:
        return time.time() - max(self.changed_ns) / 1e9 > SETTLED_SECONDS

    def digest(self, more: str = "") -> str:
        return hashlib.sha256(f"{tuple(self)} {more}".encode()).hexdigest()[:32]


def _checksum(path: Path) -> str:
    """Return a checksum of all bytes of a file, from the cache where the file is unchanged."""
    stamp = _Stamp.of(path)
    folder = cache_folder()
    cached = None if folder is None else folder / f"{stamp.digest()}{CHECKSUM}"
    with suppress(*ERRORS):
        if cached is not None and cached.is_file():
            found, _, check = cached.read_text().partition(" ")
            if check == stamp.digest(found):
                return found
    import outrider_native

    found = f"{outrider_native.checksum(path):016x}"
    with suppress(*ERRORS):
        if cached is not None and stamp.is_settled and _Stamp.of(path) == stamp:
            text = f"{found} {stamp.digest(found)}"
            _write_cached(cached, lambda draft: draft.write_text(text))
    return found


def _write_cached(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_unused(path.parent)
    _write(path, write)


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all; another process may write or map it at the same time."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    os.close(descriptor)
    draft = Path(name)
    try:
        write(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _touch(path: Path) -> None:
    """Mark a file as used, once a day."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > 24 * 3600:
            os.utime(path)


def _remove_unused(folder: Path) -> None:
    for ending in (PACKED, CHECKSUM):
        for path in folder.glob(f"*{ending}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                    path.unlink()
