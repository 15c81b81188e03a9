"""Download one file of a model: resumed, decompressed within its limit, verified, then renamed.

NAME.part        bytes as sent; the next run continues them by Range
NAME.unpacked    decompressed, before its checksum is known
NAME             complete and verified
"""

import gzip
import hashlib
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from outrider.catalog.index import File
from outrider.catalog.web import PIECE, RefusedError, UnreachableError, Web, pieces
from outrider.errors import MissingExtraError, ModelError, ResourceError
from outrider.files import file_sha256, open_regular
from outrider.files.writing import flush

ATTEMPTS = 4
"""Connections for one file before the download stops; each continues the one before."""
OVERHEAD = 1 << 20
"""Bytes that a compressed file may be longer than its content."""
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
WINDOW_LOG = 27
"""Largest window of zstd: 128 MiB of memory."""
Report = Callable[[str, int, int | None], None]
"""Called with the name of a file, the bytes received, and all bytes if known."""


class Stored(NamedTuple):
    """Size and checksum of a complete file."""

    size: int
    sha256: str


def download(file: File, work: Path, web: Web, report: Report) -> Stored:
    """Download a file into the folder `work`, or verify the one that is there."""
    target, part = work / file.name, work / f"{file.name}.part"
    if target.is_file():
        found = Stored(target.stat().st_size, file_sha256(target))
        if _fault(file, found) is None:
            return found
        target.unlink()
    if "://" not in file.url:
        with open_regular(Path(file.url)) as source:
            return _unpack(file, source, target)
    while True:
        resumed = part.is_file()
        _receive(file, part, web, report)
        try:
            with part.open("rb") as source:
                stored = _unpack(file, source, target)
        except ModelError:
            part.unlink()
            if not resumed:  # else the first bytes may belong to another file
                raise
        else:
            part.unlink()
            return stored


def _receive(file: File, part: Path, web: Web, report: Report) -> None:
    """Receive the bytes as sent; continue after broken connections."""
    for left in reversed(range(ATTEMPTS)):
        try:
            _continue(file, part, web, report)
            return
        except UnreachableError as error:
            kept = part.stat().st_size if part.exists() else 0
            if error.status == 416 and kept:  # all bytes are there, or those of another file
                if file.sent_size is None:
                    return
                part.unlink()
            elif not left or 400 <= error.status < 500:
                if not kept:
                    raise
                note = f"{kept:,} bytes are kept, and the same command continues"
                raise ResourceError(f"{error}; {note}") from error


def _continue(file: File, part: Path, web: Web, report: Report) -> None:
    have = part.stat().st_size if part.exists() else 0
    limit = file.largest + OVERHEAD if file.sent_size is None else file.sent_size
    if have and have == file.sent_size:
        return
    with web.open(file.url, {"Range": f"bytes={have}-"} if have else {}) as answer:
        continued = answer.status == 206 and _starts_at(answer, have)
        have = have if continued else 0
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else file.sent_size
        if total is not None and total > limit:
            raise _too_large(file, limit)
        _check_space(file, part, (total or 0) - have)
        with part.open("ab" if continued else "wb") as copy:
            for piece in pieces(file.url, answer):
                have += len(piece)
                if have > limit:
                    raise _too_large(file, limit)
                copy.write(piece)
                report(file.name, have, total)
    if total is not None and have < total:
        raise UnreachableError(file.url, f"the connection ended after {have:,} of {total:,} bytes")


def _starts_at(answer: Any, offset: int) -> bool:
    return str(answer.headers.get("Content-Range", "")).startswith(f"bytes {offset}-")


def _check_space(file: File, part: Path, more: int) -> None:
    needed, free = more + (file.size or 0), shutil.disk_usage(part.parent).free
    if needed > free:
        raise ResourceError(
            f"{part.parent}: {file.name} needs {needed >> 20} MiB, {free >> 20} are free; free some"
        )


def _too_large(file: File, limit: int) -> RefusedError:
    return RefusedError(f"{file.url}: is larger than the {limit:,} bytes that are allowed")


def _unpack(file: File, source: IO[bytes], target: Path) -> Stored:
    """Decompress into a temporary file, verify it and rename it."""
    staging = target.with_name(f"{target.name}.unpacked")
    try:
        found = _decompress(file, source, staging)
        if fault := _fault(file, found):
            raise ModelError(f"{file.url}: {fault}")
        flush(staging)
        staging.replace(target)
    finally:
        staging.unlink(missing_ok=True)
    return found


def _decompress(file: File, source: IO[bytes], staging: Path) -> Stored:
    digest, size, content = hashlib.sha256(), 0, _decompressing(source)
    with staging.open("wb") as copy:
        while piece := _read(file, content):
            size += len(piece)
            if size > file.largest:
                raise ModelError(
                    f"{file.url}: is larger than the stated or allowed size of "
                    f"{file.largest:,} bytes"
                )
            digest.update(piece)
            copy.write(piece)
    return Stored(size, digest.hexdigest())


def _read(file: File, content: Any) -> bytes:
    try:
        return cast(bytes, content.read(PIECE))
    except _damage() as error:
        reason = " ".join(str(error).split())[:100]
        raise ModelError(f"{file.url}: cannot be decompressed: {reason}") from error


def _fault(file: File, found: Stored) -> str | None:
    """Return what differs from the list."""
    if file.size is not None and found.size != file.size:
        return f"has {found.size:,} bytes, the list states {file.size:,}; it is not kept"
    if file.sha256 is not None and found.sha256 != file.sha256:
        return f"has the sha256 {found.sha256}, the list states {file.sha256}; it is not kept"
    return None


def _decompressing(source: IO[bytes]) -> Any:
    """Return a reader of the content, by the first bytes: a server may decompress by itself."""
    magic = source.read(4)
    source.seek(0)
    if magic.startswith(GZIP):
        return gzip.GzipFile(fileobj=source)
    return _open_zstd(source) if magic == ZSTD else source


def _open_zstd(source: IO[bytes]) -> Any:
    if sys.version_info >= (3, 14):
        from compression.zstd import DecompressionParameter, ZstdFile

        return ZstdFile(source, options={DecompressionParameter.window_log_max: WINDOW_LOG})
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError(
            "zstandard", "serve", "reading Firefox's Remote Settings"
        ) from error
    reader = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG)
    return reader.stream_reader(source, read_across_frames=True, closefd=False)


def _damage() -> tuple[type[Exception], ...]:
    """Return the exceptions of damaged compressed files."""
    kinds: list[type[Exception]] = [zlib.error, EOFError, OSError]
    zstandard = sys.modules.get("zstandard") or sys.modules.get("compression.zstd")
    kinds.append(cast(Any, zstandard).ZstdError if zstandard is not None else EOFError)
    return tuple(kinds)
