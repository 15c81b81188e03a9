"""HTML and XML: block elements divide texts, elements inside a sentence are spans.

    page = read(content)
    page.write(translate_marked(page.texts, translate))

Attributes that are read (`alt`, `title`, `placeholder`, `aria-label`) are texts of their own.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from outrider.documents.entities import trim, unescape
from outrider.documents.html_elements import Element, Rules, collapse, divide
from outrider.documents.html_scanner import Kind, Token, scan
from outrider.documents.marked import MarkedText, Span
from outrider.documents.tags import Kept, Tag, mark_up, match
from outrider.documents.web_encoding import decode, encode

ATTRIBUTES = ("alt", "title", "placeholder", "aria-label")
_READ = re.compile(rf"\s(?:{'|'.join(ATTRIBUTES)})\s*=", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""\s([^\s=>"'/]+)\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+)""")
_AHEAD = 8
"""Tags between two words that are examined."""
_SPACED = ("br", "img", "input")
"""Elements without content that divide words."""


_Item = str | Token | Element
"""Markup that is copied, a tag or text, or an element."""


@dataclass(frozen=True)
class _Place:
    """The place of a text."""

    number: int
    items: Sequence[_Item]
    """Its source."""
    divided: frozenset[str]
    """Tags beside which a space was added."""
    blanks: tuple[str, str]
    """White space before and after the text that is inside of its mark-up."""


class Page:
    """HTML or XML with texts that can be replaced."""

    def __init__(self, text: str, rules: Rules | None = None, encoding: str = "utf-8") -> None:
        """Read a page or a fragment; `encoding` is that of `write`."""
        self._encoding = encoding
        self._rules = rules or Rules()
        self.texts: list[MarkedText] = []
        """The texts to translate, in reading order."""
        self._parts: list[_Item | _Place] = []
        self._joined: dict[str, tuple[str, ...]] = {}
        """Tags of joined mark-up."""
        self._elements: dict[tuple[str, str], str] = {}
        """Elements that are kept, by their start tag and text."""
        self._attributes: dict[str, list[tuple[int, int, int]]] = {}
        """For each tag the places of its attributes and the numbers of their texts."""
        run: list[_Item] = []
        items = [*divide(list(scan(text, xml=self._rules.xml)), self._rules)]
        over = _over_blocks(items)
        for number, (item, divides) in enumerate(items):
            if isinstance(item, Token) and _READ.search(item.raw):
                self._read_attributes(item.raw)
            if not (divides or number in over):
                run.append(item)
                continue
            self._add(run)
            self._parts.append(item)
            run = []
        self._add(run)

    def write(self, translations: Sequence[MarkedText]) -> bytes:
        """Return the page with these texts."""
        return encode(self.write_text(translations), self._encoding)

    def write_text(self, translations: Sequence[MarkedText]) -> str:
        """Return the page with these texts, as a string."""
        if len(translations) != len(self.texts):
            raise ValueError(f"{len(translations)} translations of {len(self.texts)} texts")
        tags = {
            raw: self._with_attributes(raw, places, translations)
            for raw, places in self._attributes.items()
        }
        parts: list[str] = []
        for part in self._parts:
            if not isinstance(part, _Place):
                parts.append(_raw(part, tags))
            elif translations[part.number] == self.texts[part.number]:
                parts += [_raw(item, tags) for item in part.items]
            else:
                marked = self._write_marked(translations[part.number], part.divided, tags)
                parts += [part.blanks[0], *marked, part.blanks[1]]
        return "".join(parts)

    def _add(self, run: list[_Item]) -> None:
        """Add the items between two blocks; the mark-up around the text is no part of it."""
        pairs = match([_as_tag(item) for item in run])
        opening = {end: start for start, end in pairs.items()}
        first, last = 0, len(run) - 1
        while first <= last:
            if _is_blank(run[first]) and first not in pairs:
                first += 1
            elif _is_blank(run[last]) and last not in opening:
                last -= 1
            elif pairs.get(first) == last:
                first, last = first + 1, last - 1
            elif pairs.get(first) == first + 1:
                first += 2
            elif opening.get(last) == last - 1:
                last -= 2
            else:
                break
        inside = run[first : last + 1]
        if not any(_has_letters(item) for item in inside):
            self._parts += run
            return
        lead = tail = ""
        if isinstance(inside[0], Token) and inside[0].kind is Kind.text:
            start, _ = trim(inside[0].raw)
            lead, inside[0] = inside[0].raw[:start], Token(Kind.text, inside[0].raw[start:])
        if isinstance(inside[-1], Token) and inside[-1].kind is Kind.text:
            _, end = trim(inside[-1].raw)
            inside[-1], tail = Token(Kind.text, inside[-1].raw[:end]), inside[-1].raw[end:]
        marked, divided, blanks = self._mark_up(inside)
        place = _Place(len(self.texts), inside, divided, blanks)
        self._parts += [*run[:first], lead, place, tail, *run[last + 1 :]]
        self.texts.append(marked)

    def _mark_up(
        self, items: Sequence[_Item]
    ) -> tuple[MarkedText, frozenset[str], tuple[str, str]]:
        pieces: list[str | Tag | Kept] = []
        divided: set[str] = set()
        before, lead, begun = " ", "", False
        """The text so far ends with it."""
        for number, item in enumerate(items):
            if isinstance(item, Token) and item.kind is Kind.text:
                text = collapse(item.raw)
                if before == " " and text[:1] == " ":
                    text, lead = text[1:], lead if begun else " "
                pieces.append(text)
                before, begun = text[-1:] or before, begun or bool(text)
            elif isinstance(item, Element) and item.text:
                pieces.append(Kept(item.text, item.open, item.close))
                self._elements[item.open, item.text] = item.raw
                before, begun = item.text[-1], True
            else:
                pieces.append(_as_tag(item))
                spaced = isinstance(item, Token) and item.name in _SPACED and not self._rules.xml
                if spaced and before.isalnum() and _begins_word(items, number + 1):
                    pieces.append(" ")
                    before, lead, begun = " ", "", False
                    divided.add(_raw(item, {}))
        tail = _strip_end(pieces)
        marked, joined = mark_up(pieces)
        self._joined |= joined
        return marked, frozenset(divided), (lead, tail)

    def _write_marked(
        self, marked: MarkedText, divided: frozenset[str], tags: Mapping[str, str]
    ) -> Iterator[str]:
        around: list[Span] = []
        end = 0

        def text(place: int) -> str:
            nonlocal end
            part, end = marked.text[end:place], max(end, place)
            return html.escape(part, quote=False)

        def mark(raw: str) -> str:
            return "".join(tags.get(one, one) for one in self._joined.get(raw, (raw,)))

        for span in marked.spans:
            while around and around[-1].end <= span.start:
                yield text(around[-1].end)
                yield mark(around.pop().close)
            yield text(span.start)
            element = None
            if span.kept and (span.open or span.close):
                element = self._elements.get((span.open, marked.text[span.start : span.end]))
            if element is not None:
                yield element
                end = max(end, span.end)
                continue
            yield mark(span.open)
            if span.start < span.end:
                around.append(span)
                continue
            yield mark(span.close)
            if span.open in divided and marked.text[end : end + 1] == " ":
                end += 1
        while around:
            yield text(around[-1].end)
            yield mark(around.pop().close)
        yield text(len(marked.text))

    def _read_attributes(self, raw: str) -> None:
        if raw in self._attributes:
            return
        places = self._attributes.setdefault(raw, [])
        for found in _ATTRIBUTE.finditer(raw):
            if found[1].lower() not in ATTRIBUTES:
                continue
            text = unescape(found[2].strip("\"'"))
            if any(map(str.isalpha, text)):
                places.append((*found.span(2), len(self.texts)))
                self.texts.append(MarkedText(text))

    def _with_attributes(
        self, raw: str, places: list[tuple[int, int, int]], translations: Sequence[MarkedText]
    ) -> str:
        parts, end = [], 0
        for start, stop, number in places:
            if translations[number] != self.texts[number]:
                value = translations[number].text.replace("&", "&amp;").replace("<", "&lt;")
                quote = raw[start] if raw[start] in "\"'" else '"'
                value = value.replace(quote, "&quot;" if quote == '"' else "&#39;")
                parts += [raw[end:start], quote, value, quote]
                end = stop
        return "".join([*parts, raw[end:]])


def read(content: bytes, rules: Rules | None = None) -> Page:
    """Read a page in the encoding that it declares, UTF-8 by default."""
    text, encoding = decode(content)
    return Page(text, rules, encoding)


def _over_blocks(items: Sequence[tuple[_Item, bool]]) -> set[int]:
    """Return the numbers of tags whose element has several texts: they divide texts too."""
    runs = [0, *accumulate(divides for _, divides in items)]
    pairs = match([_as_tag(item) for item, _ in items])
    return {
        number
        for opening, closing in pairs.items()
        if runs[opening + 1] != runs[closing]
        for number in (opening, closing)
    }


def _raw(item: _Item, tags: Mapping[str, str]) -> str:
    if isinstance(item, str):
        return item
    return tags.get(item.raw, item.raw) if isinstance(item, Token) and item.name else item.raw


def _as_tag(item: _Item) -> Tag:
    if isinstance(item, Token) and item.kind in (Kind.opens, Kind.closes):
        return Tag(item.raw, item.name, item.kind is Kind.closes)
    return Tag(_raw(item, {}))


def _is_blank(item: _Item) -> bool:
    """Whether an item has no text."""
    if isinstance(item, Token) and item.kind is Kind.text:
        start, end = trim(item.raw)
        return start >= end
    return not (isinstance(item, Element) and item.text)


def _has_letters(item: _Item) -> bool:
    return (
        isinstance(item, Token)
        and item.kind is Kind.text
        and any(map(str.isalpha, unescape(item.raw)))
    )


def _strip_end(pieces: list[str | Tag | Kept]) -> str:
    """Remove and return the white space at the end of a text."""
    tail = ""
    for number in reversed(range(len(pieces))):
        piece = pieces[number]
        if isinstance(piece, Kept):
            break
        if isinstance(piece, str):
            pieces[number] = stripped = piece.rstrip(" ")
            tail = tail if stripped == piece else " "
            if stripped:
                break
    return tail


def _begins_word(items: Sequence[_Item], at: int) -> bool:
    """Whether the next text begins with a letter or digit."""
    for number in range(at, min(at + _AHEAD, len(items))):
        item = items[number]
        if isinstance(item, Token) and item.kind is Kind.text and item.raw:
            return item.raw[0].isalnum()
        if isinstance(item, Element):
            return item.text[:1].isalnum()
    return False
