"""Text files: characters located in them, replaced without a change of the others."""

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.documents.marked import MarkedText, Span
from outrider.errors import InputError

Edit = tuple[int, int, str]
"""First character, the one after the last, and what replaces them."""

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


@dataclass(frozen=True)
class TextFile:
    """The characters of a file and how they are encoded."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""
    """Its byte order mark."""

    def write(self, edits: Iterable[Edit]) -> bytes:
        """Return the file with these parts replaced; they do not overlap."""
        parts: list[str] = []
        end = 0
        for start, stop, new in sorted(edits, key=lambda edit: edit[:2]):
            parts += self.text[end:start], new
            end = stop
        parts.append(self.text[end:])
        try:
            return self.mark + "".join(parts).encode(self.encoding)
        except UnicodeEncodeError as error:
            raise InputError(
                f"{error.object[error.start]!r} cannot be written in {self.encoding}, the encoding "
                "of the file: convert the file to UTF-8 first"
            ) from None


def decode(content: bytes, encoding: str = "utf-8") -> TextFile:
    """Decode a text file; a byte order mark overrules `encoding`."""
    mark = next((mark for mark in _MARKS if content.startswith(mark)), b"")
    encoding = _MARKS.get(mark, encoding)
    try:
        text = content[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start + len(mark)} of the file is not {encoding.upper()}: convert it, "
            "for example with iconv -f WINDOWS-1252 -t UTF-8"
        ) from None
    if "\0" in text:
        raise InputError("the file contains NUL bytes: it is not a text file")
    return TextFile(text, encoding, mark)


@dataclass(frozen=True)
class Item:
    """Texts that belong together, and the edits that write their translations."""

    texts: Sequence[MarkedText]
    edits: Callable[[Sequence[MarkedText]], Iterable[Edit]]


class Writable(Protocol):
    """A file of which parts can be replaced."""

    def write(self, edits: Sequence[Edit]) -> bytes:
        """Return the file with these parts replaced; they do not overlap."""
        ...


@dataclass(frozen=True)
class TextDocument:
    """A text file with the texts located in it."""

    file: Writable
    items: Sequence[Item]
    also: Sequence[Edit] = ()
    """Edits in a file of which a text is translated."""

    @property
    def texts(self) -> Sequence[MarkedText]:
        """The texts to translate, in reading order."""
        return [text for item in self.items for text in item.texts]

    def write(self, translations: Sequence[MarkedText]) -> bytes:
        """Return the file with these texts; items that equal the source are not touched."""
        left = list(translations)
        edits: list[Edit] = []
        end = 0
        for item in self.items:
            start, end = end, end + len(item.texts)
            if left[start:end] != list(item.texts):
                edits += item.edits(left[start:end])
        if end != len(left):
            raise ValueError(f"{len(left)} translations of {end} texts")
        return self.file.write([*edits, *self.also] if edits else [])


def with_markup(
    marked: MarkedText,
    escape: Callable[[str], str] = str,
    copied: Callable[[Span, str], bool] = lambda span, text: False,
) -> str:
    """Return the text with the mark-up of its spans.

    Args:
        marked: The text.
        escape: Applied to the text between mark-up.
        copied: Whether the text of a span is written without `escape`.
    """
    parts: list[str] = []
    opened: list[Span] = []
    raw = 0
    end = 0

    def advance(to: int) -> None:
        nonlocal end
        if to > end:
            text = marked.text[end:to]
            parts.append(text if raw else escape(text))
            end = to

    def close() -> None:
        nonlocal raw
        span = opened.pop()
        advance(span.end)
        raw -= copied(span, marked.text[span.start : span.end])
        parts.append(span.close)

    for span in marked.spans:
        while opened and opened[-1].end <= span.start:
            close()
        advance(span.start)
        parts.append(span.open)
        if span.end > span.start:
            opened.append(span)
            raw += copied(span, marked.text[span.start : span.end])
        else:
            parts.append(span.close)
    while opened:
        close()
    advance(len(marked.text))
    return "".join(parts)
