"""Word documents: the paragraphs of the body, headers, footers, notes, comments and text boxes.

Runs of equal formatting are one span. The results of fields such as links and tables of contents
are translated; page numbers, dates, citations, equations and deleted text are kept.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.documents import Document
from outrider.documents.archive import Archive, ArchiveDocument
from outrider.documents.opc import members
from outrider.documents.paragraphs import Paragraphs
from outrider.documents.parts import Kind, Part, Run
from outrider.documents.xml import Element, Source, elements, escape, source

PARTS = (
    *("document.main", "document.macroEnabled.main", "template.main", "macroEnabledTemplate.main"),
    *("footnotes", "endnotes", "comments", "header", "footer"),
)
"""The members with texts, by the ends of their content types, in the order of translation."""
NAMESPACES = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w",
    "http://purl.oclc.org/ooxml/wordprocessingml/main": "w",
    "http://schemas.openxmlformats.org/officeDocument/2006/math": "m",
    "http://purl.oclc.org/ooxml/officeDocument/math": "m",
    "http://www.w3.org/XML/1998/namespace": "xml",
}
CONTAINERS = ("w:hyperlink", "w:ins", "w:moveTo", "w:smartTag", "w:customXml", "w:dir", "w:bdo")
RANGES = ("w:bookmark", "w:commentRange", "w:perm", "w:moveFromRange", "w:moveToRange")
"""Names, without `Start` and `End`, of points that begin and end something."""
TRANSLATED_FIELDS = ("HYPERLINK", "TOC", "TOA", "INDEX", "REF", "STYLEREF", "FORMTEXT", "QUOTE")
FIXED_CONTROLS = ("w:dropDownList", "w:comboBox", "w:date", "w:equation", "w:citation")
"""Content controls whose content is computed, or one of a list."""
FIELDS = 50
"""Deepest nesting of fields."""

_UNSEEN = re.compile(
    r'<\w+:(?:lang|noProof)(?:\s[^>]*)?/>|\s\w+:hint="\w*"|<(\w+:rPrChange)\b.*</\1>', re.DOTALL
)
"""Formatting that does not change how a text looks."""
_WITHOUT_FONT = re.compile(r"<\w+:rFonts\s*/>")
_SYMBOLS = re.compile(r'\w+:ascii="(?:Symbol|Wingdings|Webdings|Marlett)')


def read(content: bytes) -> Document:
    """Locate the texts of a .docx file."""
    archive = Archive(content)
    found: dict[str, Document] = {}
    for name in members(archive, PARTS):
        raw = archive.read(name)
        found[name] = _paragraphs(source(name, raw), raw)
    return ArchiveDocument(archive, found)


def _paragraphs(file: Source, raw: bytes) -> Paragraphs:
    paragraphs: list[list[Part]] = []
    fields: list[_Field] = []
    styles: dict[str, str] = {}
    prefix = "w:"
    for outer in elements(file, ("w:p",), NAMESPACES):
        prefix = file.content[outer.start + 1 : outer.inner].split(b">")[0].split()[0].decode()
        prefix = prefix.rstrip("/")[:-1]
        paragraphs.append(_Reader(file.content, prefix, styles, fields).parts(outer))
        boxed: list[_Field] = []
        paragraphs += [
            _Reader(file.content, prefix, styles, boxed).parts(inner)
            for inner in outer.inside("w:p")
        ]

    def write(style: str, text: str) -> str:
        marks = {"\n": f"<{prefix}br/>", "\t": f"<{prefix}tab/>"}
        words = [
            marks.get(word) or f'<{prefix}t xml:space="preserve">{escape(word)}</{prefix}t>'
            for word in re.split(r"([\n\t])", text)
            if word
        ]
        style = "" if style == f"<{prefix}rPr/>" else style
        return f"<{prefix}r>{style}{''.join(words)}</{prefix}r>"

    return Paragraphs(file, raw, paragraphs, write)


@dataclass(slots=True)
class _Field:
    """A field that has begun: `begin`, code, `separate`, result, `end`."""

    reader: object
    """The paragraph in which it begins."""
    begin: int
    """Index of its first part in this paragraph."""
    code: str = ""
    separate: int | None = None

    @property
    def is_translated(self) -> bool:
        words = self.code.split()
        return self.separate is not None and bool(words) and words[0] in TRANSLATED_FIELDS


class _Reader:
    """Lists the parts of a paragraph."""

    def __init__(
        self, content: bytes, prefix: str, styles: dict[str, str], fields: list[_Field]
    ) -> None:
        self._content, self._prefix, self._styles, self._fields = content, prefix, styles, fields
        self._parts: list[Part] = []
        self._complete: dict[int, tuple[_Field, int]] = {}

    def parts(self, paragraph: Element) -> list[Part]:
        self._children(paragraph)
        return self._joined()

    def _children(self, around: Element) -> None:
        for child in around.elements():
            if child.name == "w:r":
                self._run(child)
            elif child.name in CONTAINERS:
                self._container(child, child)
            elif child.name == "w:sdt":
                self._control(child)
            elif child.name == "w:fldSimple":
                field = _Field(self, 0, child.attributes.get("w:instr", ""), 0)
                if field.is_translated:
                    self._container(child, child)
                else:
                    self._add("kept", child, _visible(child))
            elif child.name == "m:oMath":
                self._add("kept", child, "".join(part.text for part in child.inside("m:t")))
            elif child.name == "w:proofErr":
                self._add("drop", child)
            elif child.name not in ("w:pPr", "w:sdtPr", "w:customXmlPr", "w:smartTagPr"):
                self._point(child)

    def _container(self, outer: Element, inner: Element) -> None:
        self._parts.append(Part("open", outer.start, inner.inner))
        self._children(inner)
        self._parts.append(Part("close", inner.close, outer.end))

    def _control(self, control: Element) -> None:
        content = next(control.elements("w:sdtContent"), None)
        kinds = [kind for one in control.elements("w:sdtPr") for kind in one.elements()]
        if content is None or any(kind.name in FIXED_CONTROLS for kind in kinds):
            self._add("kept", control, _visible(control))
        else:
            self._container(control, content)

    def _point(self, element: Element) -> None:
        self._add("point", element)
        for name in RANGES:
            if element.name in (f"{name}Start", f"{name}End"):
                part = self._parts[-1]
                part.kind = "open" if element.name.endswith("Start") else "close"
                part.pair = (name, element.attributes.get("w:id"))

    def _add(
        self, kind: Kind, element: Element, text: str = "", run: Run | None = None, style: str = ""
    ) -> Part:
        kind = "point" if kind == "kept" and not text.strip() else kind
        part = Part(kind, element.start, element.end, text, style, run)
        self._parts.append(part)
        return part

    def _run(self, element: Element) -> None:
        formatting = next(element.elements("w:rPr"), None)
        end = formatting.end if formatting else element.inner
        raw = self._content[formatting.start : end].decode() if formatting else ""
        head = self._content[element.start : end].decode()
        run = Run(element.start, element.end, head, f"</{self._prefix}r>")
        style = self._style(raw)
        for child in element.elements():
            match child.name:
                case "w:rPr" | "w:lastRenderedPageBreak" | "w:softHyphen":
                    pass
                case "w:t" if _SYMBOLS.search(raw):
                    self._add("point", child, run=run)
                case "w:t":
                    self._text(child, _characters(child), run, style)
                case "w:noBreakHyphen":
                    self._text(child, "\u2011", run, style)
                case "w:ruby":
                    base = "".join(map(_visible, child.elements("w:rubyBase")))
                    self._text(child, base, run, style)
                case "w:tab" | "w:ptab":
                    self._add("break", child, run=run)
                case "w:br" | "w:cr":
                    kind = child.attributes.get("w:type", "textWrapping")
                    self._add("break", child, run=run).wraps = kind == "textWrapping"
                case "w:fldChar" | "w:instrText":
                    self._field(child, run)
                case _:
                    self._add("point", child, run=run)

    def _text(self, element: Element, text: str, run: Run, style: str) -> None:
        """Add a text; it divides the paragraph if it is in a field that is kept."""
        shown = all(field.is_translated for field in self._fields)
        self._add("text" if shown else "break", element, text, run, style)

    def _style(self, raw: str) -> str:
        """Return the formatting of the first run that looks the same."""
        seen = _WITHOUT_FONT.sub("", _UNSEEN.sub("", raw))
        if not re.search(r"<\w+:rPr\s*>\s*<(?!/)", seen):
            return f"<{self._prefix}rPr/>"
        return self._styles.setdefault(seen, raw)

    def _field(self, element: Element, run: Run) -> None:
        """Add a part of a field as a break; complete fields are joined later."""
        self._add("break", element, run=run)
        last, kind = len(self._parts) - 1, element.attributes.get("w:fldCharType")
        if kind == "begin":
            self._fields.append(_Field(self, last))
        elif not self._fields:
            return
        elif element.name == "w:instrText":
            self._fields[-1].code += element.text
        elif kind == "separate":
            self._fields[-1].separate = last
        elif kind == "end":
            field = self._fields.pop()
            if field.reader is self and len(self._fields) < FIELDS:
                self._complete[field.begin] = field, last

    def _joined(self) -> list[Part]:
        """Return the parts with each field as a container or as one kept part."""
        parts, out, ends = self._parts, list[Part](), dict[int, _Field]()
        position = 0
        while position < len(parts):
            field, end = self._complete.get(position, (None, 0))
            if field is not None:
                last = field.separate if field.is_translated and field.separate else end
                if _is_balanced(parts[position : last + 1]):
                    whole = _whole(parts[position : last + 1])
                    if field.is_translated:
                        whole.kind, whole.pair, whole.fallback = "open", field.begin, "break"
                        ends[end] = field
                    else:
                        result = parts[end if field.separate is None else field.separate : end]
                        whole.text = "".join(part.text for part in result)
                        whole.kind = "kept" if whole.text.strip() else "point"
                    out.append(whole)
                    position = last + 1
                    continue
            part = parts[position]
            if position in ends:
                part.kind, part.pair, part.fallback = "close", ends[position].begin, "break"
            out.append(part)
            position += 1
        return out


def _whole(parts: Sequence[Part]) -> Part:
    first, last = parts[0], parts[-1]
    return Part("point", first.start, last.end, run=first.run, last_run=last.last_run or last.run)


def _is_balanced(parts: Sequence[Part]) -> bool:
    """Whether every container that begins here ends here."""
    depth = 0
    for part in parts:
        depth += (part.kind == "open" and part.pair is None) - (
            part.kind == "close" and part.pair is None
        )
        if depth < 0:
            return False
    return depth == 0


def _characters(element: Element) -> str:
    """Return the text of an element as it is shown."""
    text = re.sub(r"[\t\r\n]", " ", element.text)
    preserved = element.attributes.get("xml:space") == "preserve"
    return text if preserved else text.strip(" ")


def _visible(element: Element) -> str:
    """Return the text inside an element that is not deleted."""
    return "".join(map(_characters, element.inside("w:t", outside=("w:del", "w:moveFrom"))))
