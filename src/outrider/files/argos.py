"""Argos packages (`.argosmodel`): an archive of which a few files are a model.

    translate-zh_en-1_9/metadata.json
                       /sentencepiece.model
                       /model/model.bin, config.json, shared_vocabulary.json

Only these are unpacked, under these names, whatever else an archive holds or calls them: into the
cache, once, or into a temporary folder of this process where no cache can be written.
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
from typing import IO, NoReturn

from outrider.errors import ModelError, ResourceError
from outrider.files.cache import cache_folder
from outrider.files.reading import open_regular
from outrider.files.writing import explained, working_folder

__all__ = ["unpack_argos"]

WANTED = re.compile(
    r"[^/]+/(metadata\.json|sentencepiece\.model|model/(?:model\.bin|config\.json"
    r"|(?:shared|source|target)_vocabulary\.(?:json|txt)))"
)
SMALL_BYTES = 64 << 20
"""Most that any file but the weights may have."""
RATIO = 100
"""How many times larger weights may be than their part of the archive; real ones shrink by a
fifth."""
ENTRIES = 10_000
PIECE = 1 << 20
DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(OSError, RuntimeError, ValueError, OverflowError),
)
"""What the library raises where an archive is not one."""
_Found = dict[str, zipfile.ZipInfo]


def unpack_argos(path: Path) -> Path:
    """Return the folder of a package, unpacked now or before."""
    cache = cache_folder()
    if cache is None:
        return Path(_temporary(path.resolve()).name)
    try:
        about = path.resolve().stat()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    key = hashlib.sha256(f"{path.resolve()} {about.st_size} {about.st_mtime_ns}".encode())
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
        for name, about in _choose(path, archive).items():
            target = folder / name
            target.parent.mkdir(exist_ok=True)
            with target.open("wb") as copy:
                _copy(path, about, _pieces(path, archive, about), copy)


def _open(path: Path, raw: IO[bytes]) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(raw)
    except DAMAGED as error:
        _refuse(path, error)


def _pieces(path: Path, archive: zipfile.ZipFile, about: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield a file of the archive in pieces."""
    try:
        with archive.open(about) as source:
            while piece := source.read(PIECE):
                yield piece
    except DAMAGED as error:
        _refuse(path, error)


def _refuse(path: Path, error: Exception) -> NoReturn:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    raise ModelError(f"{path}: damaged, or not an Argos package ({reason})") from None


def _choose(path: Path, archive: zipfile.ZipFile) -> _Found:
    """Return the files of a model by the names they are to have."""
    if len(archive.infolist()) > ENTRIES:
        raise ModelError(f"{path}: holds more than {ENTRIES} files; a package has a dozen")
    found: _Found = {}
    for about in archive.infolist():
        match = WANTED.fullmatch(about.filename)
        if match is None or match[0].startswith(".."):
            continue
        if match[1] in found:
            raise ModelError(f"{path}: holds {match[1]} twice")
        small = match[1] != "model/model.bin"
        if (small and about.file_size > SMALL_BYTES) or (
            about.file_size > RATIO * max(about.compress_size, PIECE)
        ):
            size = f"{about.file_size >> 20} MiB in {about.compress_size >> 10} KiB"
            raise ModelError(f"{path}: {match[1]} would be {size}; this is no real model")
        found[match[1]] = about
    if "model/model.bin" not in found:
        raise ModelError(f"{path}: holds no model/model.bin; this is not an Argos package")
    return found


def _copy(path: Path, about: zipfile.ZipInfo, pieces: Iterator[bytes], copy: IO[bytes]) -> None:
    """Copy what a file was said to have, and not a byte more."""
    left = about.file_size
    room = shutil.disk_usage(Path(copy.name).parent).free
    if left > room:
        raise ResourceError(f"{path}: needs {left >> 20} MiB to be unpacked, {room >> 20} are free")
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise ModelError(f"{path}: {about.filename[:80]!r} is larger than it says")
        copy.write(piece)
    if left:
        raise ModelError(f"{path}: {about.filename[:80]!r} is smaller than it says")
