"""A text on its way through a session: what is decoded for it, and how that becomes a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.decoding import Hypothesis, Request
from outrider.runtime.result import Result

__all__ = ["Work"]


@dataclass(frozen=True)
class Work:
    """One text, taken apart by a `Translator` or a `Generator`."""

    requests: list[Request]
    """One for every piece of the text, in order."""
    join: Callable[[Sequence[list[Hypothesis]]], list[Result]]
    """Makes the text, and its alternatives, of what the pieces came to; given only the first few,
    it makes the beginning of the text."""
