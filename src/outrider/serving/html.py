"""HTML: the text between tags is translated, the tags stay as they are.

A scanner of our own, linear in the length of the text whatever that is: a search that has failed
once is not tried again. It builds no tree and mends nothing; what looks broken is copied.

Comments end where a browser ends them (HTML standard, 13.2.5.41 to 52): `<!--` at `-->`, `--!>` or
an immediate `>`; bogus comments (`<!x`, `<?x`, `</ x`) at the first `>`; and either at the end of
the text if nothing closes it.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.entities import html5

__all__ = ["Page", "read_page"]

RAW = ("script", "style", "textarea", "title")
"""Elements in which nothing is a tag but their own end."""
VERBATIM = (*RAW[:3], "code", "pre", "kbd", "samp", "template", "svg", "math")
"""Elements whose text is no language."""
VOID = (
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source"),
    *("track", "wbr"),
)
_COMMENT_END, _EMPTY_END = re.compile("--!?>"), re.compile("-?>")
_CDATA = "<![CDATA["
_UNSEEN = "\u00ad\u200b-\u200f\u2060\ufeff"
"""Soft hyphen, zero-width characters and marks of direction."""


def _blanks() -> re.Pattern[str]:
    """Return a pattern of characters and entities that stay around a text as they are."""
    blank = re.compile(rf"[\s{_UNSEEN}]+")
    names = [name for name, text in html5.items() if blank.fullmatch(text)]
    known = [code for code in (*range(0x3001), 0xFEFF) if blank.fullmatch(chr(code))]
    codes = [code for code in known if html.unescape(f"&#{code};") == chr(code)]
    decimal, hexadecimal = ("|".join(f"{code:{form}}" for code in codes) for form in "dx")
    return re.compile(
        rf"(?:[\s{_UNSEEN}]|&(?:{'|'.join(sorted(names, reverse=True))}"
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
    """A page taken apart."""

    parts: list[str]
    """All of it, in order; texts are without their entities and the blanks around them."""
    places: list[int]
    """Which of the parts are texts."""

    @property
    def texts(self) -> list[str]:
        """What is to be translated."""
        return [self.parts[place] for place in self.places]

    def write(self, texts: Sequence[str]) -> str:
        """Put other texts in the place of those."""
        parts = list(self.parts)
        for place, text in zip(self.places, texts, strict=True):
            parts[place] = html.escape(text, quote=False)
        return "".join(parts)


def read_page(text: str) -> Page:
    """Take a page, or a piece of one, apart."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._hopeless: set[str] = set()
        """What does not occur any more."""
        self._broken = False
        """Whether quotes were found that make no sense; then they are no longer looked at."""
        self._parts: list[str] = []
        self._places: list[int] = []
        self._kept, self._depth = "", 0
        """Inside which element nothing is translated, and how many of its name are open."""

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
            at = opening + 1  # a sign of the text
        return len(text), len(text)

    def _tag_end(self, start: int) -> int:
        """Return where what begins with this sign ends; -1 where it begins nothing."""
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
        while not self._broken and (match := _QUOTE_OR_END.search(text, at)) is not None:
            if match[0] == ">":
                return match.end()
            at = self._find(match[0], match.end())
            self._broken = at < 0
        self._broken = True
        return self._find(">", start)

    def _comment_end(self, start: int) -> int:
        """Return where a comment ends whose content begins here."""
        text = self._text
        match = _EMPTY_END.match(text, start) or _COMMENT_END.search(text, start)
        return len(text) if match is None else match.end()

    def _find(self, what: str, start: int) -> int:
        """Return where the next one ends; -1 where there is none."""
        found = -1 if what in self._hopeless else self._text.find(what, start)
        if found < 0:
            self._hopeless.add(what)
            return -1
        return found + len(what)

    def _add_text(self, raw: str) -> None:
        start, end = 0, len(raw)
        for match in _BLANKS.finditer(raw):
            if match.start() == 0:
                start = match.end()
            if match.end() == len(raw):
                end = max(start, match.start())
        said = html.unescape(_NUMBER.sub(_shorten, raw[start:end]))
        if self._depth or not any(map(str.isalpha, said)):
            self._parts.append(raw)
            return
        self._places.append(len(self._parts) + 1)
        self._parts += [raw[:start], said, raw[end:]]

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
    """Drop digits that decide nothing: `html.unescape` fails at more than 4,300 of them."""
    digits = number[2] or number[3]
    return number[0] if len(digits) < 9 else f"&#{number[1] or ''}{digits.lstrip('0')[:9] or 0};"


def _is_letter(character: str) -> bool:
    return character.isascii() and character.isalpha()


def _name(tag: str) -> str:
    match = _NAME.match(tag)
    return "" if match is None else match[1].lower()
