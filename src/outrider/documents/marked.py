"""Texts with mark-up, and the transfer of mark-up from a text to its translation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Mark-up around a part of a text, or at a point of it."""

    start: int
    end: int
    """Equal to `start` for a point, such as `<br>` or an image."""
    open: str
    """The mark-up before the part, as the format writes it; empty for parts that are only kept."""
    close: str = ""
    """The mark-up after the part."""
    kept: bool = False
    """Whether the part is copied to the translation unchanged: code, a placeholder, an address."""


@dataclass(frozen=True)
class MarkedText:
    """A text without mark-up, and its mark-up as spans."""

    text: str
    spans: tuple[Span, ...] = ()
    """Nested or apart, never crossed, in the order of the document: a span stands before those
    inside it, and points at the same place stand in their order."""
