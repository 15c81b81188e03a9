"""Elements of XML files and their positions in bytes.

The parser is expat. Entities that a file defines and files that it refers to are refused.
"""

import codecs
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from outrider.errors import InputError

DEPTH = 250
"""Deepest nesting of elements, so that code can recurse over them."""
PIECE = 1 << 16

_TAG = re.compile(rb"<[^\"'>]*(?:\"[^\"]*\"[^\"'>]*|'[^']*'[^\"'>]*)*>")
_DECLARED = re.compile(rb"\s*<\?xml[^>]*?\sencoding\s*=\s*[\"']([A-Za-z][\w.\-]*)[\"']")
_ENCODING = re.compile(
    r"utf-(8|16)|(us-)?ascii|iso-8859|windows-12|cp12|koi8|gb|big5|euc|shift", re.IGNORECASE
)
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_FORBIDDEN = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_SPECIAL = re.compile('[&<>"\r]')
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"}


@dataclass(slots=True)
class Text:
    """Characters between two tags, and their bytes."""

    text: str
    start: int
    end: int


@dataclass(slots=True)
class Element:
    """An element and the bytes of its tags."""

    name: str
    """`prefix:name`, with the prefix that the reader chose for the namespace."""
    attributes: Mapping[str, str]
    start: int
    inner: int
    """The first byte after the start tag."""
    close: int = 0
    """The first byte of the end tag; equal to `inner` and `end` in `<name/>`."""
    end: int = 0
    children: list["Element | Text"] = field(default_factory=list)

    def elements(self, *names: str) -> Iterator["Element"]:
        """Yield the child elements, or those with one of the names."""
        for child in self.children:
            if isinstance(child, Element) and (not names or child.name in names):
                yield child

    def inside(self, *names: str, outside: Collection[str] = ()) -> Iterator["Element"]:
        """Yield the descendants of these names in the order of the file, not inside `outside`."""
        for child in self.elements():
            if child.name in names:
                yield child
            if child.name not in outside:
                yield from child.inside(*names, outside=outside)

    @property
    def text(self) -> str:
        """The characters inside."""
        return "".join(child.text for child in self.children)


@dataclass(frozen=True)
class Source:
    """An XML file as UTF-8, and the encoding it is written in."""

    name: str
    content: bytes
    encoding: str = "utf-8"
    mark: bytes = b""
    """The byte order mark, which `content` has not."""

    def encoded(self, content: bytes) -> bytes:
        """Return changed UTF-8 content in the encoding of the file."""
        if self.encoding == "utf-8":
            return self.mark + content
        return self.mark + content.decode("utf-8").encode(self.encoding, "xmlcharrefreplace")


def source(name: str, raw: bytes) -> Source:
    """Decode an XML file; `name` is its name in messages."""
    mark = next((mark for mark in _MARKS if raw.startswith(mark)), b"")
    raw = raw[len(mark) :]
    declared = _DECLARED.match(raw[:200])
    encoding = _MARKS.get(mark) or (declared[1].decode("ascii") if declared else "utf-8")
    if not _ENCODING.match(encoding):
        raise InputError(f"{name} is in the encoding {encoding[:40]!r}; save it as UTF-8")
    try:
        encoding = codecs.lookup(encoding).name
        text = raw.decode(encoding)
        if text.encode(encoding) != raw:
            raise ValueError("characters with several encodings")
        content = raw if encoding == "utf-8" else text.encode("utf-8")
    except (LookupError, ValueError) as error:
        raise InputError(
            f"{name} is not {encoding[:40]} text ({error}); save it as UTF-8"
        ) from error
    return Source(name, content, encoding, mark)


def elements(
    file: Source, names: Collection[str], namespaces: Mapping[str, str]
) -> Iterator[Element]:
    """Yield the outermost elements with these names, in the order of the file.

    Args:
        file: The file.
        names: Names with prefixes.
        namespaces: The prefix of each known namespace. Other names are `?:name`.
    """
    parser = _Parser(file, names, namespaces)
    for start in range(0, len(file.content), PIECE):
        yield from parser.feed(file.content[start : start + PIECE])
    yield from parser.feed(b"", last=True)


class _Parser:
    def __init__(self, file: Source, names: Collection[str], namespaces: Mapping[str, str]) -> None:
        self._file, self._wanted, self._namespaces = file, names, namespaces
        self._open: list[Element] = []
        self._found: list[Element] = []
        self._depth = 0
        self._text: Text | None = None
        self._pieces: list[str] = []
        self._expat = expat.ParserCreate("utf-8", " ")
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._characters
        self._expat.StartCdataSectionHandler = self._start_data
        self._expat.EndCdataSectionHandler = self._end_data
        self._expat.DefaultHandler = lambda _: self._end_text()
        self._expat.EntityDeclHandler = self._refuse_entity
        self._expat.SkippedEntityHandler = self._refuse_entity
        self._expat.ExternalEntityRefHandler = self._refuse_entity
        self._expat.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    def feed(self, piece: bytes, *, last: bool = False) -> list[Element]:
        """Parse the next bytes; return the elements that are complete."""
        try:
            self._expat.Parse(piece, last)
        except expat.ExpatError as error:
            name = self._file.name
            raise InputError(
                f"{name} is not well-formed XML ({error}); save the file again"
            ) from error
        found, self._found = self._found, []
        return found

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._end_text()
        self._depth += 1
        if self._depth > DEPTH:
            self._refuse(f"is nested deeper than {DEPTH} elements")
        name = self._short(name)
        if not self._open and name not in self._wanted:
            return
        start = self._expat.CurrentByteIndex
        tag = _TAG.match(self._file.content, start)
        if tag is None:  # expat has accepted a tag here
            self._refuse("is not well-formed XML")
        known = {self._short(key): value for key, value in attributes.items()}
        element = Element(name, known, start, tag.end())
        if self._open:
            self._open[-1].children.append(element)
        self._open.append(element)

    def _end(self, _: str) -> None:
        self._end_text()
        self._depth -= 1
        if not self._open:
            return
        element, content = self._open.pop(), self._file.content
        if content.startswith(b"/>", element.inner - 2):
            element.close = element.end = element.inner
        else:
            element.close = self._expat.CurrentByteIndex
            element.end = content.index(b">", element.close) + 1
        if not self._open:
            self._found.append(element)

    def _characters(self, text: str) -> None:
        if not self._open:
            return
        if self._text is None:
            self._text = Text("", self._expat.CurrentByteIndex, 0)
            self._pieces = []
        self._pieces.append(text)

    def _start_data(self) -> None:
        if self._open and self._text is None:
            self._text = Text("", self._expat.CurrentByteIndex, 0)
            self._pieces = []

    def _end_data(self) -> None:
        if self._text is not None:
            self._end_text(len("]]>"))

    def _end_text(self, length: int = 0) -> None:
        """Finish a text, whose last token is of this length if it is a part of the text."""
        if self._text is not None:
            self._text.text = "".join(self._pieces)
            self._text.end = self._expat.CurrentByteIndex + length
            self._open[-1].children.append(self._text)
            self._text = None

    def _short(self, name: str) -> str:
        namespace, _, local = name.rpartition(" ")
        return f"{self._namespaces.get(namespace, '?')}:{local}" if namespace else local

    def _refuse_entity(self, name: str | None, *_: object) -> int:
        self._refuse(f"refers to the entity {str(name)[:40]!r} or defines it; remove it")

    def _refuse(self, problem: str) -> NoReturn:
        raise InputError(f"{self._file.name} {problem}")


def escape(text: str) -> str:
    """Return a text as XML characters; those that XML cannot hold are left out."""
    return _SPECIAL.sub(lambda found: _ENTITIES[found[0]], _FORBIDDEN.sub("", text))
