"""Character references of HTML, and the blanks around a text."""

import html
import re
from html.entities import html5

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


def unescape(raw: str) -> str:
    """Replace the character references of a text."""
    return html.unescape(_NUMBER.sub(_shorten, raw)) if "&" in raw else raw


def _shorten(number: re.Match[str]) -> str:
    """Drop digits without effect: `html.unescape` fails at more than 4,300 of them."""
    digits = number[2] or number[3]
    return number[0] if len(digits) < 9 else f"&#{number[1] or ''}{digits.lstrip('0')[:9] or 0};"


def trim(raw: str) -> tuple[int, int]:
    """Return where a text without the blanks around it begins and ends."""
    start, end = 0, len(raw)
    for match in _BLANKS.finditer(raw):
        if match.start() == 0:
            start = match.end()
        if match.end() == len(raw):
            end = max(start, match.start())
    return start, end
