"""PowerPoint presentations: the paragraphs of slides, notes, comments, tables and diagrams.

Charts, equations and the layouts of slides are kept.
"""

import re
from collections.abc import Sequence

from outrider.documents import Document
from outrider.documents.archive import Archive, ArchiveDocument
from outrider.documents.opc import members
from outrider.documents.paragraphs import Paragraphs
from outrider.documents.parts import Part, Run
from outrider.documents.xml import Element, Source, elements, escape, source

PARTS = ("presentationml.slide", "presentationml.notesSlide", "diagramData", "diagramDrawing")
"""The members with texts, by the ends of their content types, in the order of translation."""
NAMESPACES = {
    "http://schemas.openxmlformats.org/drawingml/2006/main": "a",
    "http://purl.oclc.org/ooxml/drawingml/main": "a",
}
_UNSEEN = re.compile(r'\s(?:lang|altLang|dirty|err|smtClean|noProof)="[^"]*"')
_PLAIN = re.compile(r"<(\w+:)?rPr\s*(?:/>|>\s*</(?:\w+:)?rPr>)")


def read(content: bytes) -> Document:
    """Locate the texts of a .pptx file."""
    archive = Archive(content)
    found: dict[str, Document] = {}
    for name in members(archive, PARTS):
        raw = archive.read(name)
        found[name] = _paragraphs(source(name, raw), raw)
    return ArchiveDocument(archive, found)


def _paragraphs(file: Source, raw: bytes) -> Paragraphs:
    paragraphs: list[Sequence[Part]] = []
    styles: dict[str, str] = {}
    prefix = "a:"
    for paragraph in elements(file, ("a:p",), NAMESPACES):
        tag = re.match(rb"<([^\s/>:]+:|)", file.content[paragraph.start : paragraph.inner])
        prefix = tag[1].decode() if tag else prefix
        paragraphs.append([
            part
            for child in paragraph.elements()
            for part in _parts(child, file.content, prefix, styles)
        ])  # fmt: skip

    def write(style: str, text: str) -> str:
        runs = [
            f"<{prefix}r>{style}<{prefix}t>{escape(line)}</{prefix}t></{prefix}r>" if line else ""
            for line in text.split("\n")
        ]
        return f"<{prefix}br>{style}</{prefix}br>".join(runs)

    return Paragraphs(file, raw, paragraphs, write)


def _parts(child: Element, content: bytes, prefix: str, styles: dict[str, str]) -> list[Part]:
    part = Part("point", child.start, child.end)
    match child.name:
        case "a:pPr" | "a:endParaRPr":
            return []
        case "a:br":
            part.kind, part.wraps = "break", True
        case "a:fld":
            part.text = "".join(text.text for text in child.elements("a:t"))
            part.kind = "kept" if part.text.strip() else "point"
        case "a:r":
            formatting = next(child.elements("a:rPr"), None)
            raw = content[formatting.start : formatting.end].decode() if formatting else ""
            seen = _UNSEEN.sub("", raw)
            empty = not raw or _PLAIN.fullmatch(seen) is not None
            part.kind, part.text = "text", "".join(text.text for text in child.elements("a:t"))
            part.style = styles.setdefault("" if empty else seen, raw or f"<{prefix}rPr/>")
            part.run = Run(child.start, child.end, "", "")
    return [part]
