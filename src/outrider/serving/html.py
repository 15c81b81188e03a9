"""Translation of HTML: extracts the text between tags and copies the tags.

The scanner builds no tree and copies malformed markup unchanged. It takes linear time for any
input, because a search that failed once is not repeated.

Comments end as in browsers (HTML standard, 13.2.5.41 to 52): `<!--` at `-->`, `--!>` or an
immediate `>`; bogus comments (`<!x`, `<?x`, `</ x`) at the first `>`; unclosed ones at the end of
the text.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.entities import html5

RAW = ("script", "style", "textarea", "title")
"""Elements in which only their own end tag is a tag."""
VERBATIM = (*RAW[:3], "code", "pre", "kbd", "samp", "template", "svg", "math")
"""Elements whose text is not translated."""
VOID = (
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source"),
    *("track", "wbr"),
)
_COMMENT_END, _EMPTY_END = re.compile("--!?>"), re.compile("-?>")
_CDATA = "<![CDATA["
_INVISIBLE = "\u00ad\u200b-\u200f\u2060\ufeff"
"""Soft hyphen, zero-width characters and direction marks."""


def _blanks() -> re.Pattern[str]:
    """Return a pattern of whitespace around a text, as characters or entities."""
    blank = re.compile(rf"[\s{_INVISIBLE}]+")
    names = [name for name, text in html5.items() if blank.fullmatch(text)]
    known = [code for code in (*range(0x3001), 0xFEFF) if blank.fullmatch(chr(code))]
    codes = [code for code in known if html.unescape(f"&#{code};") == chr(code)]
    decimal, hexadecimal = ("|".join(f"{code:{form}}" for code in codes) for form in "dx")
    return re.compile(
        rf"(?:[\s{_INVISIBLE}]|&(?:{'|'.join(sorted(names, reverse=True))}"
        rf"|#0*(?:{decimal})(?:;|(?![0-9]))|#[xX]0*(?i:{hexadecimal})(?:;|(?![0-9a-fA-F]))))+"
    )


_BLANKS = _blanks()
_NUMBER = re.compile("&#(?:([xX])([0-9a-fA-F]+)|([0-9]+));?")
_NAME = re.compile(r"</?([a-zA-Z][^\s/>]*)")
_QUOTE_OR_END = re.compile("[\"'>]")
_KEPT = re.compile(r"""\stranslate\s*=\s*["']?no\b""", re.IGNORECASE)
_RAW_END = {name: re.compile(f"</{name}\\b", re.IGNORECASE) for name in RAW}


@dataclass(frozen=True)
class Page:
    """HTML divided into texts and markup."""

    parts: list[str]
    """All parts in order; texts are unescaped and without surrounding whitespace."""
    places: list[int]
    """Indices of the texts in `parts`."""

    @property
    def texts(self) -> list[str]:
        """Texts to translate."""
        return [self.parts[place] for place in self.places]

    def write(self, texts: Sequence[str]) -> str:
        """Return the HTML with the texts replaced."""
        parts = list(self.parts)
        for place, text in zip(self.places, texts, strict=True):
            parts[place] = html.escape(text, quote=False)
        return "".join(parts)


def read_page(text: str) -> Page:
    """Divide HTML into texts and markup."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._absent: set[str] = set()
        """Strings that do not occur in the rest of the text."""
        self._unbalanced = False
        """Whether quotes are unbalanced; they are then ignored."""
        self._parts: list[str] = []
        self._places: list[int] = []
        self._kept, self._depth = "", 0
        """Element that is not translated, and the number of open elements of this name."""

    def scan(self) -> Page:
        text, at = self._text, 0
        while at < len(text):
            opening, end = self._next_tag(at)
            self._add_text(text[at:opening])
            at = end
            if end > opening:
                self._add_tag(name := _name(tag := text[opening:end]), tag)
                if name in _RAW_END and tag[1] != "/":
                    match = _RAW_END[name].search(text, end)
                    at = len(text) if match is None else match.start()
                    (self._parts.append if name in VERBATIM else self._add_text)(text[end:at])
        return Page(self._parts, self._places)

    def _next_tag(self, at: int) -> tuple[int, int]:
        """Return where the next tag or comment begins and ends."""
        text = self._text
        while (opening := text.find("<", at)) >= 0:
            end = self._tag_end(opening)
            if end >= 0:
                return opening, end
            at = opening + 1  # a literal "<"
        return len(text), len(text)

    def _tag_end(self, start: int) -> int:
        """Return the end of the tag or comment at `start`; -1 if there is none."""
        text = self._text
        if text.startswith("<!--", start):
            return self._comment_end(start + 4)
        first, second = text[start + 1 : start + 2], text[start + 2 : start + 3]
        if first in ("!", "?") or (first == "/" and second and not _is_letter(second)):
            closing = "]]>" if text.startswith(_CDATA, start) else ">"
            end = self._find(closing, start)
            end = self._find(">", start) if end < 0 else end
            return len(text) if end < 0 else end
        if not _is_letter(second if first == "/" else first):
            return -1
        at = start + 1
        while not self._unbalanced and (match := _QUOTE_OR_END.search(text, at)) is not None:
            if match[0] == ">":
                return match.end()
            at = self._find(match[0], match.end())
            self._unbalanced = at < 0
        self._unbalanced = True
        return self._find(">", start)

    def _comment_end(self, start: int) -> int:
        """Return the end of a comment whose content begins at `start`."""
        text = self._text
        match = _EMPTY_END.match(text, start) or _COMMENT_END.search(text, start)
        return len(text) if match is None else match.end()

    def _find(self, what: str, start: int) -> int:
        """Return the end of the next occurrence; -1 if there is none."""
        place = -1 if what in self._absent else self._text.find(what, start)
        if place < 0:
            self._absent.add(what)
            return -1
        return place + len(what)

    def _add_text(self, raw: str) -> None:
        start, end = 0, len(raw)
        for match in _BLANKS.finditer(raw):
            if match.start() == 0:
                start = match.end()
            if match.end() == len(raw):
                end = max(start, match.start())
        text = html.unescape(_NUMBER.sub(_shorten, raw[start:end]))
        if self._depth or not any(map(str.isalpha, text)):
            self._parts.append(raw)
            return
        self._places.append(len(self._parts) + 1)
        self._parts += [raw[:start], text, raw[end:]]

    def _add_tag(self, name: str, tag: str) -> None:
        self._parts.append(tag)
        closes = tag[1] == "/"
        if not name or tag.endswith("/>") or name in VOID:
            return
        if self._depth and name == self._kept:
            self._depth += -1 if closes else 1
        elif not self._depth and not closes and (name in VERBATIM or _KEPT.search(tag)):
            self._kept, self._depth = name, 1


def _shorten(number: re.Match[str]) -> str:
    """Drop digits without effect: `html.unescape` fails at more than 4,300 of them."""
    digits = number[2] or number[3]
    return number[0] if len(digits) < 9 else f"&#{number[1] or ''}{digits.lstrip('0')[:9] or 0};"


def _is_letter(character: str) -> bool:
    return character.isascii() and character.isalpha()


def _name(tag: str) -> str:
    match = _NAME.match(tag)
    return "" if match is None else match[1].lower()
