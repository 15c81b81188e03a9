"""Argos packages (`.argosmodel`): zip archives with a CTranslate2 model.

    translate-zh_en-1_9/metadata.json
                       /sentencepiece.model
                       /model/model.bin, config.json, shared_vocabulary.json

Only these files are unpacked, under these names: into the cache, once, or into a temporary folder
of this process if the cache cannot be written.
"""

import hashlib
import lzma
import re
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO

from outrider.errors import ModelError, ResourceError
from outrider.files.reading import open_regular
from outrider.files.writing import cache_folder, explained, working_folder

WANTED = re.compile(
    r"[^/]+/(metadata\.json|sentencepiece\.model|model/(?:model\.bin|config\.json"
    r"|(?:shared|source|target)_vocabulary\.(?:json|txt)))"
)
SMALL_BYTES = 64 << 20
"""Limit of all files but the weights."""
RATIO = 100
"""Largest compression ratio of weights; that of real ones is about 1.25."""
ENTRIES = 10_000
PIECE = 1 << 20
DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(OSError, RuntimeError, ValueError, OverflowError),
)
"""Exceptions of the library for damaged archives."""


def unpack_argos(path: Path) -> Path:
    """Return the folder of a package, which is unpacked at the first call."""
    cache = cache_folder()
    if cache is None:
        return Path(_temporary(path.resolve()).name)
    try:
        status = path.resolve().stat()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    key = hashlib.sha256(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode())
    folder = cache / f"{path.stem}-{key.hexdigest()[:16]}"
    try:
        if not folder.is_dir():
            with working_folder(folder) as work:
                _unpack(path, work)
    except (ResourceError, OSError):  # the cache cannot be written
        return Path(_temporary(path.resolve()).name)
    return folder


@lru_cache
def _temporary(path: Path) -> "tempfile.TemporaryDirectory[str]":
    folder = tempfile.TemporaryDirectory(prefix="outrider-")
    with explained(Path(folder.name), "nothing was kept"):
        _unpack(path, Path(folder.name))
    return folder


def _unpack(path: Path, folder: Path) -> None:
    with open_regular(path) as raw, _open(path, raw) as archive:
        for name, entry in _choose(path, archive).items():
            target = folder / name
            target.parent.mkdir(exist_ok=True)
            with target.open("wb") as copy:
                _copy(path, entry, _pieces(path, archive, entry), copy)


def _open(path: Path, raw: IO[bytes]) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(raw)
    except DAMAGED as error:
        raise _damaged(path, error) from error


def _pieces(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield a file of the archive in pieces."""
    try:
        with archive.open(entry) as source:
            while piece := source.read(PIECE):
                yield piece
    except DAMAGED as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ModelError(f"{path}: damaged, or not an Argos package ({reason})")


def _choose(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the entries of the model's files by their new names."""
    if len(archive.infolist()) > ENTRIES:
        raise ModelError(f"{path}: holds more than {ENTRIES} files; a package has a dozen")
    chosen: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        match = WANTED.fullmatch(entry.filename)
        if match is None or match[0].startswith(".."):
            continue
        if match[1] in chosen:
            raise ModelError(f"{path}: holds {match[1]} twice")
        small = match[1] != "model/model.bin"
        if (small and entry.file_size > SMALL_BYTES) or (
            entry.file_size > RATIO * max(entry.compress_size, PIECE)
        ):
            size = f"{entry.file_size >> 20} MiB in {entry.compress_size >> 10} KiB"
            raise ModelError(f"{path}: {match[1]} would be {size}; this is no real model")
        chosen[match[1]] = entry
    if "model/model.bin" not in chosen:
        raise ModelError(f"{path}: holds no model/model.bin; this is not an Argos package")
    return chosen


def _copy(path: Path, entry: zipfile.ZipInfo, pieces: Iterator[bytes], copy: IO[bytes]) -> None:
    """Copy a file, of exactly the length that the archive states."""
    left = entry.file_size
    free = shutil.disk_usage(Path(copy.name).parent).free
    if left > free:
        raise ResourceError(f"{path}: needs {left >> 20} MiB to be unpacked, {free >> 20} are free")
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise ModelError(f"{path}: {entry.filename[:80]!r} is larger than it says")
        copy.write(piece)
    if left:
        raise ModelError(f"{path}: {entry.filename[:80]!r} is smaller than it says")
