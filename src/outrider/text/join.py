"""Text as it may reach us from a command line or a program."""

from collections.abc import Iterable
from typing import TypeVar

__all__ = ["as_texts", "well_formed"]

_Texts = TypeVar("_Texts", bound=Iterable[str])


def as_texts(texts: str | _Texts) -> list[str] | _Texts:
    """Take one string for one text, not for a sequence of letters."""
    return [texts] if isinstance(texts, str) else texts


def well_formed(text: str) -> str:
    """Replace half characters (lone surrogates), which no tokenizer can take."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
