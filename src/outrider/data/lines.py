"""Lines of plain and gzipped text files, held one at a time and never longer than a limit.

Lines end at a newline byte and nowhere else: editors and Python disagree about form feeds and
Unicode separators, and one disagreement shifts every pair after it.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from outrider.errors import DataError, nearest

__all__ = ["Line", "decode", "open_file", "read_lines"]


class Line(NamedTuple):
    """The bytes of a line without its end; `whole` is False where it was too long to hold."""

    raw: bytes
    whole: bool = True


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or gzipped file; whatever is wrong with it becomes one sentence."""
    try:
        with path.open("rb") as plain:
            zipped = plain.peek(2)[:2] == b"\x1f\x8b"
            stream = io.BufferedReader(gzip.GzipFile(fileobj=plain)) if zipped else plain
            yield cast(BinaryIO, stream)
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        raise DataError(f"{path}: no such file{nearest(path.name, siblings)}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error})") from None
    except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def read_lines(stream: BinaryIO, path: Path, limit: int) -> Iterator[Line]:
    """Lines of at most `limit` bytes; of a longer one only the beginning is kept."""
    raw = stream.readline(limit + 1)
    if not raw:
        raise DataError(f"{path}: the file is empty")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: is UTF-16, expected UTF-8; convert it, for example with iconv")
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    while raw:
        whole = raw.endswith(b"\n") or len(raw) <= limit
        yield Line(raw.rstrip(b"\r\n"), whole)
        while not whole and raw and not raw.endswith(b"\n"):
            raw = stream.readline(io.DEFAULT_BUFFER_SIZE)
        raw = stream.readline(limit + 1)


def decode(line: Line) -> tuple[str, str]:
    """Text of a line, and what is wrong with it ("" if nothing)."""
    if not line.whole:
        return line.raw[:200].decode("utf-8", "replace"), "too long"
    if b"\0" in line.raw:
        return line.raw.replace(b"\0", b"").decode("utf-8", "replace"), "NUL byte"
    try:
        return line.raw.decode("utf-8"), ""
    except UnicodeDecodeError:
        return line.raw.decode("utf-8", "replace"), "not UTF-8"
