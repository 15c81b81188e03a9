"""Lines of plain and gzipped text files and of pipes, with a limit on their length.

Lines end at a newline byte only. Editors and Python disagree about form feeds and Unicode
separators, and one extra line break would shift all following pairs. Errors while reading become a
`DataError` with the file's name. Files that are not text are detected by their first bytes.
"""

import codecs
import gzip
import io
import os
import re
import select
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from outrider.errors import DataError, nearest

LINE_BYTES = 1 << 24
"""Longest line of a text to translate or score."""
PIPE_WAIT = 0.02
"""Seconds to wait for a pipe before it counts as slow."""
_PIECE = 1 << 16
Check = Callable[[bytes, str], None]
"""Raises a `DataError` for the first bytes and the name of a file."""


class Line(NamedTuple):
    """The bytes of a line without its end; `whole` is False if it was truncated."""

    raw: bytes
    whole: bool = True


class _NamedErrors(io.RawIOBase):
    """The bytes of a stream; errors while reading name the file."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.stream, self.name = stream, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        with _read_errors(self.name):
            piece = self.stream.read1(len(view))  # type: ignore[attr-defined]
        view[: len(piece)] = piece
        return len(piece)


@contextmanager
def _read_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{name}: damaged gzip file ({error})") from error
    except (OSError, ValueError) as error:  # a name with a NUL byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{name}: cannot be read: {reason}") from error


def _unzipped(stream: io.BufferedReader, name: str) -> tuple[io.BufferedReader, bool]:
    """Decompress a gzipped stream, detected by its first bytes; return whether it is gzipped."""
    with _read_errors(name):
        zipped = stream.peek(2)[:2] == b"\x1f\x8b"
    plain = gzip.GzipFile(fileobj=stream) if zipped else stream
    return io.BufferedReader(_NamedErrors(cast(BinaryIO, plain), name), _PIECE), zipped


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    with _read_errors(str(path)):
        try:
            stream = path.open("rb")
        except FileNotFoundError as error:
            siblings = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
            raise DataError(f"{path}: no such file{nearest(path.name, siblings)}") from error
    with stream:
        yield stream


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or gzipped file; errors become a `DataError`."""
    with _opened(path) as stream:
        yield _unzipped(stream, str(path))[0]


@contextmanager
def open_lines(
    path: Path | None, *, limit: int = LINE_BYTES, check: Check | None = None
) -> Iterator["Lines"]:
    """Open the lines of a plain or gzipped file, or of standard input."""
    if path is None:
        yield Lines(_standard_input(), "standard input", limit=limit, check=check)
        return
    with _opened(path) as stream:
        yield Lines(stream, str(path), limit=limit, check=check)


def read_text(path: Path) -> str:
    """Read a plain or gzipped UTF-8 file."""
    with open_file(path) as file:
        raw = file.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: is not UTF-8 text; convert the file") from error


def text_lines(path: Path) -> list[str]:
    """Read the lines of a plain or gzipped UTF-8 file, which must not be empty."""
    lines = []
    with open_lines(path) as raw:
        for number, line in enumerate(raw, 1):
            try:
                lines.append(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                message = "is not UTF-8 text; convert the file"
                raise DataError(f"{path}, line {number}: {message}") from error
    if not lines:
        raise DataError(f"{path}: the file is empty")
    return lines


def _standard_input() -> io.BufferedReader:
    if sys.stdin is None or sys.stdin.closed:
        raise DataError("standard input is closed; give a text or a file")
    stream = getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)


class Lines:
    """Lines as bytes without their end; `ready` reports whether the next is available."""

    def __init__(
        self,
        stream: io.BufferedReader,
        name: str,
        *,
        limit: int = LINE_BYTES,
        check: Check | None = None,
    ) -> None:
        """Read the lines of a stream; a line of more than `limit` bytes is an error."""
        self.name, self.limit, self._check = name, limit, check
        self._raw, self._pipe = stream, _pipe(stream)
        self._buffer, self._searched, self._ended = bytearray(), 0, False
        self._number = 0
        self._wait, self._was_ready = PIPE_WAIT, False

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> bytes:
        if not self._was_ready:
            self._wait = PIPE_WAIT
        self._was_ready = False
        while not self._ended and not self._has_line():
            self._read()
        if self._ended and not self._buffer:
            raise StopIteration
        return self._take()

    def ready(self) -> bool:
        """Whether the next line or the end can be read without blocking.

        For a pipe it waits up to `PIPE_WAIT` seconds in total until it returns False.
        """
        self._was_ready = True
        while not self._ended and not self._has_line():
            if self._pipe is None:
                return True
            if not self._readable(self._pipe):
                self._wait = PIPE_WAIT
                return False
            self._read()
        return True

    def _readable(self, pipe: int) -> bool:
        if os.name == "nt":  # select() does not support pipes on Windows
            return False
        began = time.monotonic()
        readable, _, _ = select.select([pipe], [], [], self._wait)
        self._wait = max(0.0, self._wait - (time.monotonic() - began))
        return bool(readable)

    @cached_property
    def _stream(self) -> io.BufferedReader:
        # Opened with the first line, because the writer of a pipe may start late.
        stream, zipped = _unzipped(self._raw, self.name)
        if zipped:
            self._pipe = None
        if self._check is not None:
            self._check(stream.peek(), self.name)
        return stream

    def _read(self) -> None:
        piece = self._stream.read1(_PIECE)
        self._buffer += piece
        self._ended = not piece

    def _has_line(self) -> bool:
        """Whether the buffer contains a whole line or exceeds the limit."""
        end = self._buffer.find(b"\n", self._searched)
        self._searched = len(self._buffer) if end < 0 else end
        return end >= 0 or len(self._buffer) > self.limit

    def _take(self) -> bytes:
        self._number += 1
        end = self._buffer.find(b"\n", self._searched)
        end = len(self._buffer) if end < 0 else end
        if end > self.limit:
            raise DataError(
                f"{self.name}, line {self._number}: is longer than {self.limit:,} bytes; "
                "break it into lines"
            )
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        if self._number == 1:
            line = _without_bom(line, self.name)
        return line.removesuffix(b"\r")


def _pipe(stream: io.BufferedReader) -> int | None:
    """Return the descriptor of a stream that may block; None for a regular file."""
    try:
        descriptor = stream.fileno()
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except (OSError, ValueError):
        return None
    return None if regular else descriptor


def _without_bom(line: bytes, name: str) -> bytes:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{name}: is UTF-16, expected UTF-8; convert it, for example with iconv")
    return line.removeprefix(b"\xef\xbb\xbf")


def read_lines(stream: BinaryIO, path: Path, limit: int) -> Iterator[Line]:
    """Yield lines, truncated to `limit` bytes."""
    raw = stream.readline(limit + 1)
    if not raw:
        raise DataError(f"{path}: the file is empty")
    raw = _without_bom(raw, str(path))
    while raw:
        whole = raw.endswith(b"\n") or len(raw) <= limit
        yield Line(raw.rstrip(b"\r\n"), whole)
        while not whole and raw and not raw.endswith(b"\n"):
            raw = stream.readline(io.DEFAULT_BUFFER_SIZE)
        raw = stream.readline(limit + 1)


def decode(line: Line) -> tuple[str, str]:
    """Return the text of a line and its fault, or ""."""
    if not line.whole:
        return line.raw[:200].decode("utf-8", "replace"), "too long"
    if b"\0" in line.raw:
        return line.raw.replace(b"\0", b"").decode("utf-8", "replace"), "NUL byte"
    try:
        return line.raw.decode("utf-8"), ""
    except UnicodeDecodeError:
        return line.raw.decode("utf-8", "replace"), "not UTF-8"


_BEGINNINGS = {
    b"PK\x03\x04": "is a zip archive (docx, odt, epub, ...)",
    b"%PDF-": "is a PDF document",
    b"{\\rtf": "is an RTF document",
    b"\xd0\xcf\x11\xe0": "is an Office document (doc, xls, ppt)",
    b"WEBVTT": "is a subtitle file (WebVTT)",
    b"[Script Info]": "is a subtitle file (SubStation)",
}
_CUE = re.compile(rb"\s*(?:\d+[^\S\n]*\n\s*)?\d+:\d\d:\d\d[,.]\d{1,3}[^\S\n]+-->")
"""Beginning of a SubRip file: the number of a cue and its times."""
MOST_DAMAGED = 0.01
"""Largest share of invalid characters in UTF-8 text."""


def check_plain_text(head: bytes, name: str) -> None:
    """Raise an error if `head`, the beginning of a file, is not plain text by lines."""
    if fault := _fault(head.removeprefix(b"\xef\xbb\xbf")):
        raise DataError(f"{name}: {fault}; give plain text in UTF-8, one text per line")


def _fault(head: bytes) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ""  # UTF-16 is refused by the readers of lines
    for beginning, fault in _BEGINNINGS.items():
        if head.startswith(beginning):
            return fault
    if _CUE.match(head):
        return "is a subtitle file (SubRip)"
    if b"\0" in head:
        return "is a binary file"
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
    damaged = text.count("\ufffd") - head.count("\ufffd".encode())
    return "is not UTF-8 text" if damaged > MOST_DAMAGED * len(text) else ""
