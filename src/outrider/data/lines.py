"""Lines of plain and gzipped text files and of pipes, never longer than a limit.

Lines end at a newline byte and nowhere else: editors and Python disagree about form feeds and
Unicode separators, and one disagreement shifts every pair after it. Whatever is wrong with a file
becomes one sentence, where it is read and not where what was read is used.

Refusing files that are not lines of text, by their first bytes.
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

__all__ = [
    "LINE_BYTES",
    "Line",
    "Lines",
    "check_plain_text",
    "decode",
    "open_file",
    "open_lines",
    "read_lines",
    "read_text",
    "text_lines",
]

LINE_BYTES = 1 << 24
"""Longest line of what is translated or scored: a shelf of books, or a small file gone wrong."""
PATIENCE = 0.02
"""Seconds that a pipe may stand dry before it counts as slow."""
_PIECE = 1 << 16
Check = Callable[[bytes, str], None]
"""Raises a `DataError` for the first bytes of a file, whose name it is told."""


class Line(NamedTuple):
    """The bytes of a line without its end; `whole` is False where it was too long to hold."""

    raw: bytes
    whole: bool = True


class _Explained(io.RawIOBase):
    """The bytes of a stream; an error while reading them is one sentence with the file's name."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.stream, self.name = stream, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        with _one_sentence(self.name):
            piece = self.stream.read1(len(view))  # type: ignore[attr-defined]
        view[: len(piece)] = piece
        return len(piece)


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{name}: damaged gzip file ({error})") from None
    except (OSError, ValueError) as error:  # a name with a NUL byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{name}: cannot be read: {reason}") from None


def _unzipped(stream: io.BufferedReader, name: str) -> tuple[io.BufferedReader, bool]:
    """Look at the first bytes, not at the name; also return whether it is gzipped."""
    with _one_sentence(name):
        zipped = stream.peek(2)[:2] == b"\x1f\x8b"
    plain = gzip.GzipFile(fileobj=stream) if zipped else stream
    return io.BufferedReader(_Explained(cast(BinaryIO, plain), name), _PIECE), zipped


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    with _one_sentence(str(path)):
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            siblings = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
            raise DataError(f"{path}: no such file{nearest(path.name, siblings)}") from None
    with stream:
        yield stream


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or gzipped file; whatever is wrong with it becomes one sentence."""
    with _opened(path) as stream:
        yield _unzipped(stream, str(path))[0]


@contextmanager
def open_lines(
    path: Path | None, *, limit: int = LINE_BYTES, check: Check | None = None
) -> Iterator["Lines"]:
    """Open the lines of a file, or of standard input; plain or gzipped."""
    if path is None:
        yield Lines(_standard_input(), "standard input", limit=limit, check=check)
        return
    with _opened(path) as stream:
        yield Lines(stream, str(path), limit=limit, check=check)


def read_text(path: Path) -> str:
    """A whole plain or gzipped UTF-8 file."""
    with open_file(path) as file:
        raw = file.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: is not UTF-8 text; convert the file") from None


def text_lines(path: Path) -> list[str]:
    """The lines of a plain or gzipped UTF-8 file, which must hold some."""
    lines = []
    with open_lines(path) as raw:
        for number, line in enumerate(raw, 1):
            try:
                lines.append(line.decode("utf-8"))
            except UnicodeDecodeError:
                message = "is not UTF-8 text; convert the file"
                raise DataError(f"{path}, line {number}: {message}") from None
    if not lines:
        raise DataError(f"{path}: the file is empty")
    return lines


def _standard_input() -> io.BufferedReader:
    if sys.stdin is None or sys.stdin.closed:
        raise DataError("standard input is closed; give a text or a file")
    stream = getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)


class Lines:
    """Lines as bytes, without their end; `ready` says whether one more can be had at once."""

    def __init__(
        self,
        stream: io.BufferedReader,
        name: str,
        *,
        limit: int = LINE_BYTES,
        check: Check | None = None,
    ) -> None:
        """Read what `stream` holds; a line of more than `limit` bytes is refused."""
        self.name, self.limit, self._check = name, limit, check
        self._unopened, self._pipe = stream, _pipe(stream)
        self._held, self._searched, self._ended = bytearray(), 0, False
        self._number = 0
        self._patience, self._asked = PATIENCE, False

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> bytes:
        if not self._asked:
            self._patience = PATIENCE
        self._asked = False
        while not self._ended and not self._whole():
            self._read()
        if self._ended and not self._held:
            raise StopIteration
        return self._take()

    def ready(self) -> bool:
        """Whether the next line, or the end, is there without waiting for whoever writes it.

        A pipe may stand dry for a moment, but not for long in all between two answers of False.
        """
        self._asked = True
        while not self._ended and not self._whole():
            if self._pipe is None:
                return True
            if not self._flows(self._pipe):
                self._patience = PATIENCE
                return False
            self._read()
        return True

    def _flows(self, pipe: int) -> bool:
        if os.name == "nt":  # Windows cannot ask a pipe
            return False
        began = time.monotonic()
        readable, _, _ = select.select([pipe], [], [], self._patience)
        self._patience = max(0.0, self._patience - (time.monotonic() - began))
        return bool(readable)

    @cached_property
    def _stream(self) -> io.BufferedReader:
        # Not before the first line is asked for: whoever writes a pipe may take long to begin.
        stream, zipped = _unzipped(self._unopened, self.name)
        if zipped:
            self._pipe = None
        if self._check is not None:
            self._check(stream.peek(), self.name)
        return stream

    def _read(self) -> None:
        piece = self._stream.read1(_PIECE)
        self._held += piece
        self._ended = not piece

    def _whole(self) -> bool:
        """Whether a line is held whole, or more than a line may have."""
        end = self._held.find(b"\n", self._searched)
        self._searched = len(self._held) if end < 0 else end
        return end >= 0 or len(self._held) > self.limit

    def _take(self) -> bytes:
        self._number += 1
        end = self._held.find(b"\n", self._searched)
        end = len(self._held) if end < 0 else end
        if end > self.limit:
            raise DataError(
                f"{self.name}, line {self._number}: is longer than {self.limit:,} bytes; "
                "break it into lines"
            )
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        self._searched = 0
        if self._number == 1:
            line = _without_mark(line, self.name)
        return line.removesuffix(b"\r")


def _pipe(stream: io.BufferedReader) -> int | None:
    """Return the descriptor of what may make us wait; a regular file never does."""
    try:
        descriptor = stream.fileno()
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except (OSError, ValueError):
        return None
    return None if regular else descriptor


def _without_mark(line: bytes, name: str) -> bytes:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{name}: is UTF-16, expected UTF-8; convert it, for example with iconv")
    return line.removeprefix(b"\xef\xbb\xbf")


def read_lines(stream: BinaryIO, path: Path, limit: int) -> Iterator[Line]:
    """Lines of at most `limit` bytes; of a longer one only the beginning is kept."""
    raw = stream.readline(limit + 1)
    if not raw:
        raise DataError(f"{path}: the file is empty")
    raw = _without_mark(raw, str(path))
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


_BEGINNINGS = {
    b"PK\x03\x04": "is a zip archive (docx, odt, epub, ...)",
    b"%PDF-": "is a PDF document",
    b"{\\rtf": "is an RTF document",
    b"\xd0\xcf\x11\xe0": "is an Office document (doc, xls, ppt)",
    b"WEBVTT": "is a subtitle file (WebVTT)",
    b"[Script Info]": "is a subtitle file (SubStation)",
}
_CUE = re.compile(rb"\s*(?:\d+[^\S\n]*\n\s*)?\d+:\d\d:\d\d[,.]\d{1,3}[^\S\n]+-->")
"""How a SubRip file begins: the number of a cue, and its times."""
MOST_DAMAGED = 0.01
"""Share of the characters that may be damaged; more is another encoding or no text."""


def check_plain_text(head: bytes, name: str) -> None:
    """Refuse what is not text, or not one text a line; `head` is how the file begins."""
    if fault := _fault(head.removeprefix(b"\xef\xbb\xbf")):
        raise DataError(f"{name}: {fault}; give plain text in UTF-8, one text a line")


def _fault(head: bytes) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ""  # UTF-16, which every reader of lines refuses
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
