"""Normalisation of texts: NFC, without control characters.

Runs of combining marks are first cut to 30, the limit of Unicode's stream-safe text format, because
sorting them takes quadratic time.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import TypeVar

MAX_MARKS = 30
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
CONTROL_VERBATIM = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def normalise(text: str) -> str:
    """Normalise a sentence: NFC, white space collapsed, control characters removed."""
    text = _nfc(text)
    if not text.isprintable():
        text = CONTROL.sub("", text)
    return " ".join(text.split())


def normalise_verbatim(text: str) -> str:
    """Normalise running text: NFC, white space kept, control characters removed."""
    return CONTROL_VERBATIM.sub("", _nfc(text))


def _nfc(text: str) -> str:
    try:
        text.encode("latin-1")  # the fastest check that the text has no combining marks
    except UnicodeEncodeError:
        return unicodedata.normalize("NFC", _long_mark_runs().sub(r"\1", text))
    return text


@cache
def _long_mark_runs() -> re.Pattern[str]:
    marks = "".join(chr(c) for c in range(0x300, 0x1F000) if unicodedata.combining(chr(c)))
    return re.compile(f"([{marks}]{{{MAX_MARKS}}})[{marks}]+")


_Texts = TypeVar("_Texts", bound=Iterable[str])


def as_texts(texts: str | _Texts) -> list[str] | _Texts:
    """Wrap a single string in a list."""
    return [texts] if isinstance(texts, str) else texts


def well_formed(text: str) -> str:
    """Replace lone surrogates, which tokenizers refuse."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
