"""E-books: the pages, the tables of contents and the title of an EPUB file."""

import posixpath
import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from outrider.documents import Document, html
from outrider.documents.archive import Archive, ArchiveDocument
from outrider.documents.paragraphs import Paragraphs
from outrider.documents.parts import Part
from outrider.documents.xml import Element, Source, Text, elements, escape, source
from outrider.errors import InputError

CONTAINER, ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
NAMESPACES = {
    "urn:oasis:names:tc:opendocument:xmlns:container": "c",
    "http://www.idpf.org/2007/opf": "opf",
    "http://purl.org/dc/elements/1.1/": "dc",
    "http://www.daisy.org/z3986/2005/ncx/": "ncx",
    "http://www.w3.org/2001/04/xmlenc#": "enc",
}
TITLES = {"dc:title", "dc:description", "dc:subject"}
PAGE, CONTENTS = "application/xhtml+xml", "application/x-dtbncx+xml"


def read(content: bytes) -> Document:
    """Locate the texts of an .epub file."""
    archive = Archive(content)
    package = _package(archive)
    file = source(package, archive.read(package))
    found: dict[str, Document] = {package: _texts(file, archive.read(package), TITLES)}
    for name, kind in _pages(archive, file):
        raw = archive.read(name)
        if kind == PAGE:
            found[name] = html.read(raw)
        else:
            found[name] = _texts(source(name, raw), raw, {"ncx:text"})
    encrypted = _encrypted(archive) & found.keys()
    if encrypted:
        raise InputError(f"{min(encrypted)} is encrypted (DRM); take a copy without protection")
    return ArchiveDocument(archive, found)


def _package(archive: Archive) -> str:
    """Return the member that lists the others."""
    if CONTAINER not in archive.names:
        raise InputError(f"the file has no {CONTAINER}; it is damaged or of another format")
    file = source(CONTAINER, archive.read(CONTAINER))
    for entry in elements(file, ("c:rootfile",), NAMESPACES):
        name = entry.attributes.get("full-path", "")
        if name in archive.names:
            return name
    raise InputError("the file has no list of its pages; it is damaged")


def _pages(archive: Archive, package: Source) -> Iterator[tuple[str, str]]:
    """Yield the pages in the order of reading, then others such as the table of contents."""
    items: dict[str, tuple[str, str]] = {}
    order: list[str] = []
    folder = posixpath.dirname(package.name)
    for entry in elements(package, ("opf:item", "opf:itemref"), NAMESPACES):
        if entry.name == "opf:itemref":
            order.append(entry.attributes.get("idref", ""))
            continue
        path = unquote(urlsplit(entry.attributes.get("href", "")).path)
        kind = entry.attributes.get("media-type", "")
        name = posixpath.normpath(posixpath.join(folder, path))
        if kind in (PAGE, CONTENTS) and name in archive.names:
            items[entry.attributes.get("id", "")] = name, kind
    seen = {package.name}
    for key in (*order, *items):
        if key in items and items[key][0] not in seen:
            seen.add(items[key][0])
            yield items[key]


def _encrypted(archive: Archive) -> set[str]:
    """Return the encrypted members; fonts are, in files without protection."""
    if ENCRYPTION not in archive.names:
        return set()
    file = source(ENCRYPTION, archive.read(ENCRYPTION))
    references = elements(file, ("enc:CipherReference",), NAMESPACES)
    return {unquote(entry.attributes.get("URI", "")) for entry in references}


def _texts(file: Source, raw: bytes, names: set[str]) -> Paragraphs:
    """Locate the text inside elements that have no mark-up."""

    def parts(element: Element) -> list[Part]:
        return [
            Part("text", child.start, child.end, re.sub(r"\s+", " ", child.text))
            for child in element.children
            if isinstance(child, Text)
        ]

    paragraphs = [parts(element) for element in elements(file, names, NAMESPACES)]
    return Paragraphs(file, raw, paragraphs, lambda _, text: escape(text))
