"""Cache of packed weights, so that later starts do not pack again.

The file is beside the model, where `outrider export --to native` writes it, or in the user's cache
(`OUTRIDER_CACHE`: a folder, or `off`; by default the cache folder of the system). It stores a
checksum of the model's configs and of all bytes of its weights; a damaged file or one of another
model is ignored, as is a cache that cannot be read or written.

The checksum is XXH64, which detects changed weights, not forged ones. The checksum of a weight file
is cached under the file's path, size, times and inode, so that a start does not read all weights.
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
from outrider.files.writing import cache_folder
from outrider.formats.folder import Parts

if TYPE_CHECKING:
    import outrider_native

FILE = "model.packed"
"""Name of the file beside a model."""
PACKED, CHECKSUM = ".packed", ".checksum"
"""Suffixes of files in the cache."""
UNUSED_SECONDS = 60 * 24 * 3600
"""Time after its last use at which a cached file is removed."""
SETTLED_SECONDS = 2
"""Age below which a file could change again without a new time; its checksum is not cached."""
ERRORS = (OSError, ValueError, RuntimeError, OutriderError)
"""Errors of an unusable cache or a damaged file."""


class PackedWeights:
    """Finds and stores the packed weights of a model and its side decoders.

    Created before packing: the result is stored only if the files have not changed since.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.identity = identity(parts)

    def find(self) -> "outrider_native.PackedFile | None":
        """Map valid packed weights of this model; None if there are none."""
        from outrider_native import PackedFile

        for place in (self._beside, self._cached):
            with suppress(*ERRORS):
                path = place()
                if path is None or not path.is_file():
                    continue
                file = PackedFile(path)
                if file.about != self.identity:
                    continue
                file.verify()
                if place == self._cached:
                    _touch(path)
                return file
        return None

    def keep(self, core: "outrider_native.Engine") -> None:
        """Store packed weights in the cache, if it is writable and the model did not change."""
        with suppress(*ERRORS):
            if (path := self._cached()) is not None:
                _write_cached(path, lambda draft: self._save(core, draft))

    def write(self, core: "outrider_native.Engine") -> Path:
        """Write packed weights beside the model."""
        path = self._beside()
        try:
            _write(path, lambda draft: self._save(core, draft))
        except OSError as error:
            raise ResourceError(f"{path}: cannot be written: {error.strerror}") from error
        return path

    def _save(self, core: "outrider_native.Engine", path: Path) -> None:
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
    """Return a checksum of a model and its side decoders: configs and all weights."""
    digest = hashlib.sha256()
    for part in (parts.model, parts.drafter, parts.ctc):
        if part is None:
            digest.update(b"none")
            continue
        digest.update(repr(part.config).encode())
        # Readers of other families also compute weights from the config.
        for path in (part.folder / "config.json", *part.files):
            if path.is_file():
                digest.update(_checksum(path).encode())
    return digest.hexdigest()


class _Stamp(NamedTuple):
    """File metadata that changes when the file is written."""

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
            checksum, _, check = cached.read_text().partition(" ")
            if check == stamp.digest(checksum):
                return checksum
    import outrider_native

    checksum = f"{outrider_native.checksum(path):016x}"
    with suppress(*ERRORS):
        if cached is not None and stamp.is_settled and _Stamp.of(path) == stamp:
            text = f"{checksum} {stamp.digest(checksum)}"
            _write_cached(cached, lambda draft: draft.write_text(text))
    return checksum


def _write_cached(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_unused(path.parent)
    _write(path, write)


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically; other processes may write or map it at the same time."""
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
