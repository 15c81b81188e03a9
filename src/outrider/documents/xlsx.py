"""Excel workbooks: the texts of cells and comments.

Numbers, formulas and their results, names of sheets and the headers of tables are kept; formulas
refer to tables by their headers.
"""

import re
from collections.abc import Collection, Sequence

from outrider.documents import Document
from outrider.documents.archive import Archive, ArchiveDocument
from outrider.documents.opc import members
from outrider.documents.paragraphs import Paragraphs
from outrider.documents.parts import Part, Run
from outrider.documents.xml import Element, Source, elements, escape, source

PARTS = ("spreadsheetml.sharedStrings", "spreadsheetml.worksheet", "spreadsheetml.comments")
"""The members with texts, by the ends of their content types, in the order of translation."""
TABLES = ("spreadsheetml.table",)
NAMESPACES = {
    "http://schemas.openxmlformats.org/spreadsheetml/2006/main": "s",
    "http://purl.oclc.org/ooxml/spreadsheetml/main": "s",
    "http://www.w3.org/XML/1998/namespace": "xml",
}
TEXTS = ("s:si", "s:is", "s:text")
_CODE = re.compile(r"_x([0-9A-Fa-f]{4})_")


def read(content: bytes) -> Document:
    """Locate the texts of an .xlsx file."""
    archive = Archive(content)
    names = members(archive, (*PARTS, *TABLES))
    headers, found = set[str](), dict[str, Document]()
    files = {name: source(name, archive.read(name)) for name in names}
    for file in files.values():
        for column in elements(file, ("s:tableColumn",), NAMESPACES):
            headers.add(_comparable(column.attributes.get("name", "")))
    for name, file in files.items():
        found[name] = _paragraphs(file, archive.read(name), headers)
    return ArchiveDocument(archive, found)


def _paragraphs(file: Source, raw: bytes, headers: Collection[str]) -> Paragraphs:
    paragraphs: list[Sequence[Part]] = []
    prefix = ""
    for string in elements(file, TEXTS, NAMESPACES):
        tag = re.match(rb"<([^\s/>:]+:|)", file.content[string.start : string.inner])
        prefix = tag[1].decode() if tag else prefix
        parts = list[Part]()
        for child in string.elements():
            parts += _parts(child, file.content, prefix)
        if _comparable("".join(part.text for part in parts)) not in headers:
            paragraphs.append(parts)

    def write(style: str, text: str) -> str:
        text = f'<{prefix}t xml:space="preserve">{escape(text)}</{prefix}t>'
        formatting = "" if style == f"<{prefix}rPr/>" else style
        return f"<{prefix}r>{formatting}{text}</{prefix}r>" if style else text

    return Paragraphs(file, raw, paragraphs, write)


def _parts(child: Element, content: bytes, prefix: str) -> list[Part]:
    if child.name == "s:t":
        return [Part("text", child.start, child.end, _characters(child))]
    if child.name != "s:r":  # the pronunciation of the text
        return [Part("drop", child.start, child.end)]
    formatting = next(child.elements("s:rPr"), None)
    end = formatting.end if formatting else child.inner
    head = content[child.start : end].decode()
    style = content[formatting.start : end].decode() if formatting else f"<{prefix}rPr/>"
    run = Run(child.start, child.end, head, f"</{prefix}r>")
    return [
        Part("text", text.start, text.end, _characters(text), style, run)
        for text in child.elements("s:t")
    ]


def _characters(element: Element) -> str:
    preserved = element.attributes.get("xml:space") == "preserve"
    return element.text if preserved else element.text.strip(" \t\r\n")


def _comparable(text: str) -> str:
    """Return a text without the differences between a cell and the header of a table."""
    text = _CODE.sub(lambda found: chr(int(found[1], 16)), text)
    return " ".join(text.split()).casefold()
