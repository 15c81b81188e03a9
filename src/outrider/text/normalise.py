"""Texts as models are shown them: NFC, and without control characters.

Runs of more than 30 combining marks are cut first (the limit of Unicode's stream-safe text format):
putting them in order takes quadratic time, and a hostile line would stand still for minutes.

Text as it may reach us from a command line or a program.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import TypeVar

__all__ = ["as_texts", "normalise", "normalise_verbatim", "well_formed"]

MAX_MARKS = 30
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
CONTROL_VERBATIM = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def normalise(text: str) -> str:
    """One sentence: NFC, blanks collapsed, control characters gone."""
    text = _nfc(text)
    if not text.isprintable():
        text = CONTROL.sub("", text)
    return " ".join(text.split())


def normalise_verbatim(text: str) -> str:
    """Running text: NFC, newlines and blanks kept, control characters gone."""
    return CONTROL_VERBATIM.sub("", _nfc(text))


def _nfc(text: str) -> str:
    try:
        text.encode("latin-1")  # the quickest proof that nothing in it can combine
    except UnicodeEncodeError:
        return unicodedata.normalize("NFC", _long_mark_runs().sub(r"\1", text))
    return text


@cache
def _long_mark_runs() -> re.Pattern[str]:
    marks = "".join(chr(c) for c in range(0x300, 0x1F000) if unicodedata.combining(chr(c)))
    return re.compile(f"([{marks}]{{{MAX_MARKS}}})[{marks}]+")


_Texts = TypeVar("_Texts", bound=Iterable[str])


def as_texts(texts: str | _Texts) -> list[str] | _Texts:
    """Take one string for one text, not for a sequence of letters."""
    return [texts] if isinstance(texts, str) else texts


def well_formed(text: str) -> str:
    """Replace half characters (lone surrogates), which no tokenizer can take."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
