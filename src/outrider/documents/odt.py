"""OpenDocument texts: paragraphs and headings of the body, headers, footers, notes and text boxes.

Formatting is a container, like a link. Fields, and deleted text, are kept.
"""

import re
from collections.abc import Sequence

from outrider.documents import Document
from outrider.documents.archive import Archive, ArchiveDocument
from outrider.documents.paragraphs import Paragraphs
from outrider.documents.parts import Part
from outrider.documents.xml import Element, Source, Text, elements, escape, source
from outrider.errors import InputError

MEMBERS = ("content.xml", "styles.xml")
NAMESPACES = {
    f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0": name
    for name in ("text", "office", "drawing", "table", "manifest")
}
PARAGRAPHS = ("text:p", "text:h")
CONTAINERS = ("text:span", "text:a", "text:meta")
POINTS = ("text:note", "text:bookmark", "text:reference-mark", "text:change")
_RANGE = re.compile(r"(text:[\w-]+|office:annotation)-(start|end)")


def read(content: bytes) -> Document:
    """Locate the texts of an .odt file."""
    archive = Archive(content)
    manifest = "META-INF/manifest.xml"
    if manifest in archive.names:
        listed = source(manifest, archive.read(manifest))
        if any(elements(listed, ("manifest:encryption-data",), NAMESPACES)):
            raise InputError("the file has a password; save it without one")
    if MEMBERS[0] not in archive.names:
        raise InputError(f"the file has no {MEMBERS[0]}; it is damaged or of another format")
    found: dict[str, Document] = {}
    for name in MEMBERS:
        if name in archive.names:
            raw = archive.read(name)
            found[name] = _paragraphs(source(name, raw), raw)
    return ArchiveDocument(archive, found)


def _paragraphs(file: Source, raw: bytes) -> Paragraphs:
    paragraphs: list[Sequence[Part]] = []
    prefix = "text:"
    for outer in elements(file, (*PARAGRAPHS, "text:tracked-changes"), NAMESPACES):
        if outer.name == "text:tracked-changes":
            continue
        tag = re.match(rb"<([^\s/>:]+:|)", file.content[outer.start : outer.inner])
        prefix = tag[1].decode() if tag else prefix
        for paragraph in (outer, *outer.inside(*PARAGRAPHS)):
            reader = _Reader()
            reader.children(paragraph)
            paragraphs.append(reader.parts)

    def write(_: str, text: str) -> str:
        def space(found: re.Match[str]) -> str:
            return f' <{prefix}s {prefix}c="{len(found[0]) - 1}"/>'

        text = re.sub("  +", space, escape(text))
        return text.replace("\n", f"<{prefix}line-break/>").replace("\t", f"<{prefix}tab/>")

    return Paragraphs(file, raw, paragraphs, write)


class _Reader:
    """Lists the parts of a paragraph."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._after_space = True
        """Whether white space has no effect because it follows other white space."""

    def children(self, around: Element) -> None:
        for child in around.children:
            if isinstance(child, Text):
                self._text(child)
            elif child.name in CONTAINERS:
                self.parts.append(Part("open", child.start, child.inner))
                self.children(child)
                self.parts.append(Part("close", child.close, child.end))
            else:
                self._element(child)

    def _text(self, node: Text) -> None:
        text = re.sub(r"[ \t\r\n]+", " ", node.text)
        text = text.lstrip(" ") if self._after_space else text
        self._after_space = text.endswith(" ") if text else self._after_space
        self.parts.append(Part("text", node.start, node.end, text))

    def _element(self, element: Element) -> None:
        part = Part("point", element.start, element.end)
        self.parts.append(part)
        match element.name:
            case "text:s":
                count = element.attributes.get("text:c", "1")
                part.kind, part.text = "text", " " if count == "1" else " " * 3
            case "text:tab":
                part.kind = "break"
            case "text:line-break":
                part.kind, part.wraps = "break", True
            case "text:soft-page-break":
                part.kind = "drop"
            case "text:ruby":
                part.kind, part.text = "text", _visible(*element.elements("text:ruby-base"))
            case "office:annotation":
                part.kind, part.pair = "open", ("office:annotation", _identifier(element))
            case name if found := _RANGE.fullmatch(name):
                part.kind = "open" if found[2] == "start" else "close"
                part.pair = (found[1], _identifier(element))
            case name if name.startswith("text:") and not name.startswith(POINTS):
                part.text = _visible(element)
                part.kind = "kept" if part.text.strip() else "point"
        if element.name in ("text:s", "text:tab", "text:line-break"):
            self._after_space = element.name != "text:s"


def _identifier(element: Element) -> str | None:
    keys = ("text:name", "office:name", "text:change-id", "text:id")
    return next((element.attributes[key] for key in keys if key in element.attributes), None)


def _visible(*around: Element) -> str:
    """Return the text inside elements."""
    pieces = [
        child.text if isinstance(child, Text) else _visible(child)
        for element in around
        for child in element.children
    ]
    return re.sub(r"\s+", " ", "".join(pieces))
