"""Tokens of HTML and XML: tags, comments and the text between them.

The scanner builds no tree and accepts malformed markup. It takes linear time for any input, because
a search that failed once is not repeated.

Comments end as in browsers (HTML standard, 13.2.5.41 to 52): `<!--` at `-->`, `--!>` or an
immediate `>`; bogus comments (`<!x`, `<?x`, `</ x`) at the first `>`; unclosed ones at the end of
the text.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

RAW = ("script", "style", "textarea", "title")
"""Elements in which only their own end tag is a tag."""
VOID = (
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param"),
    *("source", "track", "wbr"),
)
_COMMENT_END, _EMPTY_END = re.compile("--!?>"), re.compile("-?>")
_CDATA = "<![CDATA["
_NAME = re.compile(r"</?([a-zA-Z][^\s/>]*)")
_QUOTE_OR_END = re.compile("[\"'>]")
_RAW_END = {name: re.compile(f"</{name}\\b", re.IGNORECASE) for name in RAW}


class Kind(Enum):
    """What a tag does."""

    text = "text"
    raw = "raw"
    """Content of a script or style element."""
    comment = "comment"
    opens = "opens"
    closes = "closes"
    empty = "empty"
    """A tag of an element without content."""


class Token(NamedTuple):
    """A tag, a comment or a text."""

    kind: Kind
    raw: str
    name: str = ""
    """Name of the element; in HTML in lower case."""


def scan(text: str, *, xml: bool = False) -> Iterator[Token]:
    """Yield the tokens of a text, which concatenate to it."""
    return _Scanner(text, xml=xml).scan()


class _Scanner:
    def __init__(self, text: str, *, xml: bool) -> None:
        self._text, self._xml = text, xml
        self._absent: set[str] = set()
        """Strings that do not occur in the rest of the text."""
        self._unbalanced = False
        """Whether quotes are unbalanced; they are then ignored."""

    def scan(self) -> Iterator[Token]:
        text, at = self._text, 0
        while at < len(text):
            opening, end = self._next_tag(at)
            if opening > at:
                yield Token(Kind.text, text[at:opening])
            at = end
            if end > opening:
                tag = self._tag(text[opening:end])
                yield tag
                if tag.name in _RAW_END and tag.kind is Kind.opens and not self._xml:
                    match = _RAW_END[tag.name].search(text, end)
                    at = len(text) if match is None else match.start()
                    kind = Kind.text if tag.name in ("title", "textarea") else Kind.raw
                    if at > end:
                        yield Token(kind, text[end:at])

    def _tag(self, raw: str) -> Token:
        match = _NAME.match(raw)
        if match is None:
            return Token(Kind.comment, raw)
        name = match[1] if self._xml else match[1].lower()
        if raw[1] == "/":
            return Token(Kind.closes, raw, name)
        empty = raw.endswith("/>") or (name in VOID and not self._xml)
        return Token(Kind.empty if empty else Kind.opens, raw, name)

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


def _is_letter(character: str) -> bool:
    return character.isascii() and character.isalpha()
