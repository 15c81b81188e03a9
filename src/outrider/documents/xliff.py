"""XLIFF 1.2 and 2: sources without a translation get one.

Existing translations stay, except copies of the source that are marked as new. The state of a
translation is not changed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from outrider.documents.marked import MarkedText, Span
from outrider.documents.text_file import Edit, Item, TextDocument, with_markup
from outrider.documents.xml import Element, Source, Text, elements, escape, source
from outrider.errors import InputError

_NAMESPACES = {
    f"urn:oasis:names:tc:xliff:document:{version}": "x"
    for version in ("1.1", "1.2", "2.0", "2.1", "2.2")
}
_AROUND = frozenset({"g", "pc", "mrk"})
_CODES = frozenset({"x", "bx", "ex", "ph", "bpt", "ept", "it", "sc", "ec", "cp", "sm", "em"})
_NEW = frozenset({"new", "needs-translation", "initial"})
_TAG = re.compile(rb"<([^\s/>:]+:|)")


@dataclass(frozen=True)
class _XmlFile:
    """An XML file in which bytes are replaced."""

    source: Source
    raw: bytes

    def write(self, edits: Sequence[Edit]) -> bytes:
        if not edits:
            return self.raw
        parts: list[bytes] = []
        end = 0
        for start, stop, new in sorted(edits, key=lambda edit: edit[:2]):
            parts += self.source.content[end:start], new.encode("utf-8", "replace")
            end = stop
        return self.source.encoded(b"".join([*parts, self.source.content[end:]]))


def read(content: bytes, target: str = "") -> TextDocument:
    """Locate the sources without a translation.

    Args:
        content: The file.
        target: Language of the translation, for a file that does not name it.
    """
    file = source("the file", content)
    items: list[Item] = []
    also: list[Edit] = []
    files = 0
    for root in elements(file, ("xliff", "x:xliff"), _NAMESPACES):
        files += 1
        two = root.attributes.get("version", "1").startswith("2")
        holders = [root] if two else list(root.elements("file", "x:file"))
        attribute = "trgLang" if two else "target-language"
        also += (
            (place, place, f' {attribute}="{escape(target)}"')
            for holder in holders
            if target and attribute not in holder.attributes
            for place in (holder.inner - 1,)
        )
        items += _items(file, root, translate=True)
    if not files:
        raise InputError("the file has no element xliff; it is of another format")
    return TextDocument(_XmlFile(file, content), items, also)


def _items(file: Source, element: Element, translate: bool) -> Iterator[Item]:
    for child in element.elements():
        name = child.name.removeprefix("x:")
        allowed = child.attributes.get("translate", "yes" if translate else "no") != "no"
        if name in ("trans-unit", "segment"):
            item = _item(file, child) if allowed else None
            if item is not None:
                yield item
        elif name not in ("alt-trans", "bin-unit", "source", "target", "ignorable"):
            yield from _items(file, child, allowed)


def _item(file: Source, unit: Element) -> Item | None:
    found = {child.name.removeprefix("x:"): child for child in unit.elements()}
    if "source" not in found:
        return None
    reader = _Reader(file)
    reader.read(found["source"])
    whole = "".join(reader.parts)
    text = whole.strip()
    first = whole.index(text)
    if not any(map(str.isalpha, text)):
        return None
    target = found.get("target")
    if target is not None:
        other = _Reader(file)
        other.read(target)
        state = target.attributes.get("state") or unit.attributes.get("state") or ""
        copied = state in _NEW and "".join(other.parts) == whole
        if "".join(other.parts).strip() and not copied:
            return None
    spans = tuple(
        Span(
            min(max(span.start - first, 0), len(text)),
            min(max(span.end - first, 0), len(text)),
            span.open,
            span.close,
            span.kept,
        )
        for span in reader.spans
    )
    around = whole[:first], whole[first + len(text) :]
    after = found.get("seg-source", found["source"])
    edits = partial(_edits, file, unit, after, target, around)
    return Item([MarkedText(text, spans)], edits)


class _Reader:
    """Reads the text of an element; elements inside are spans."""

    def __init__(self, file: Source) -> None:
        self._file = file
        self.parts: list[str] = []
        self.spans: list[Span] = []
        self.size = 0

    def read(self, element: Element) -> None:
        for child in element.children:
            if isinstance(child, Text):
                self.parts.append(child.text)
                self.size += len(child.text)
                continue
            name = child.name.removeprefix("x:")
            if name in _CODES or child.inner == child.end:
                self.spans.append(Span(self.size, self.size, self._raw(child.start, child.end)))
                continue
            number, start = len(self.spans), self.size
            opening = self._raw(child.start, child.inner)
            self.spans.append(Span(start, start, opening))
            self.read(child)
            protected = child.attributes.get("translate") == "no" or (
                child.attributes.get("mtype") == "protected"
            )
            closing = self._raw(child.close, child.end)
            self.spans[number] = Span(start, self.size, opening, closing, protected)

    def _raw(self, start: int, end: int) -> str:
        return self._file.content[start:end].decode("utf-8")


def _edits(
    file: Source,
    unit: Element,
    after: Element,
    target: Element | None,
    around: tuple[str, str],
    translations: Sequence[MarkedText],
) -> Iterator[Edit]:
    written = with_markup(translations[0], escape)
    written = f"{escape(around[0])}{written}{escape(around[1])}"
    if target is not None and target.inner < target.end:
        yield target.inner, target.close, written
        return
    raw = file.content
    place = after if target is None else target
    prefix = match[1].decode() if (match := _TAG.match(raw, after.start)) else ""
    if target is not None:
        opening = raw[target.start : target.inner - 2].decode("utf-8").rstrip()
        yield target.start, target.end, f"{opening}>{written}</{prefix}target>"
        return
    before = raw[unit.inner : after.start]
    space = before[len(before.rstrip()) :].decode("utf-8") if b"\n" in before else ""
    yield place.end, place.end, f"{space}<{prefix}target>{written}</{prefix}target>"
