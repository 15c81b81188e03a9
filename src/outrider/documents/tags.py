"""Texts with tags as marked texts: pairs of tags become spans, other tags points."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from outrider.documents.marked import MarkedText, Span

DEEPEST = 64
"""Deepest pairs of tags that become spans; deeper tags are points."""


@dataclass(frozen=True)
class Tag:
    """A tag, or another piece of mark-up inside a text."""

    raw: str
    name: str = ""
    """Tags of one name open and close each other; a tag without a name is a point."""
    closes: bool = False


@dataclass(frozen=True)
class Kept:
    """A part that is copied to the translation."""

    text: str
    open: str = ""
    close: str = ""


def match(tags: Sequence[Tag], *, deepest: int | None = None) -> dict[int, int]:
    """Return the numbers of opening tags with those of their closing tags.

    A tag closes the nearest open one of its name; pairs that cross another, or have `deepest` pairs
    around them, are left out.
    """
    waiting: dict[str, list[int]] = {}
    pairs: dict[int, int] = {}
    for number, tag in enumerate(tags):
        if tag.name and not tag.closes:
            waiting.setdefault(tag.name, []).append(number)
        elif tag.name and waiting.get(tag.name):
            pairs[waiting[tag.name].pop()] = number
    return _uncrossed(pairs, len(tags), deepest or len(tags))


def _uncrossed(pairs: dict[int, int], count: int, deepest: int) -> dict[int, int]:
    """Leave out pairs with one end of another inside, and those that are too deep.

    Each pair has a random number at both ends: those between the ends of a pair cancel out if
    both ends of every pair are there.
    """
    numbers = random.Random(0)
    at = [0] * (count + 1)
    for opening, closing in pairs.items():
        at[opening] = at[closing] = numbers.getrandbits(64)
    sums = [0]
    for value in at:
        sums.append(sums[-1] ^ value)
    clean: dict[int, int] = {}
    around: list[int] = []
    for opening in sorted(pairs):
        closing = pairs[opening]
        while around and around[-1] < opening:
            around.pop()
        if sums[opening + 1] == sums[closing] and len(around) < deepest:
            clean[opening] = closing
            around.append(closing)
    return clean


def mark_up(pieces: Iterable[str | Tag | Kept]) -> tuple[MarkedText, dict[str, tuple[str, ...]]]:
    """Return pieces of a text as a marked text, and the tags of joined mark-up.

    Mark-up that nothing divides is joined: spans around the same part are one span, and points at
    the end of a span belong to its closing mark-up.
    """
    pieces = list(pieces)
    tags = [piece if isinstance(piece, Tag) else Tag("") for piece in pieces]
    pairs = match(tags, deepest=DEEPEST)
    closing = {end: start for start, end in pairs.items()}
    joined: dict[str, tuple[str, ...]] = {}
    spans: list[Span | None] = []
    opened: dict[int, int] = {}
    texts: list[str] = []
    length = 0

    def join(*marks: str) -> str:
        whole = "".join(marks)
        parts = tuple(part for mark in marks for part in joined.get(mark, (mark,)) if part)
        if len(parts) > 1:
            joined[whole] = parts
        return whole

    def close(number: int, raw: str) -> None:
        span = spans[number]
        assert span is not None
        trailing: list[str] = []
        while len(spans) > number + 1 and ((last := spans[-1]) is None or last.start == length):
            spans.pop()
            trailing[:0] = [last.open, last.close] if last else []
        if span.start == length:
            spans[number] = Span(length, length, join(span.open, *trailing), raw)
            return
        child = spans[number + 1] if number + 1 < len(spans) else None
        opening, end = span.open, join(*trailing, raw)
        same = child is not None and (child.start, child.end) == (span.start, length)
        if child is not None and same and not child.kept:
            opening, end = join(opening, child.open), join(child.close, end)
            spans[number + 1] = None
        spans[number] = Span(span.start, length, opening, end)

    for number, piece in enumerate(pieces):
        if isinstance(piece, str):
            texts.append(piece)
            length += len(piece)
        elif isinstance(piece, Kept):
            end = length + len(piece.text)
            spans.append(Span(length, end, piece.open, piece.close, kept=True))
            texts.append(piece.text)
            length = end
        elif number in closing:
            close(opened[closing[number]], piece.raw)
        else:
            opened[number] = len(spans)
            spans.append(Span(length, length, piece.raw))
    return MarkedText("".join(texts), tuple(span for span in spans if span)), joined


def write_marks(marked: MarkedText, written: Callable[[Span], bool]) -> MarkedText:
    """Return the text with the mark-up of some of its spans in it; the other spans remain."""
    parts: list[str] = []
    around: list[tuple[Span, int]] = []
    others: list[Span] = []
    end = length = 0

    def write(place: int, mark: str) -> None:
        nonlocal end, length
        parts.extend((marked.text[end:place], mark))
        length += place - end + len(mark)
        end = place

    def close() -> None:
        span, number = around.pop()
        write(span.end, span.close if number < 0 else "")
        if number >= 0:
            others[number] = replace(others[number], end=length)

    for span in marked.spans:
        while around and around[-1][0].end <= span.start:
            close()
        writes = written(span)
        write(span.start, span.open if writes else "")
        around.append((span, -1 if writes else len(others)))
        if not writes:
            others.append(replace(span, start=length))
        if span.start == span.end:
            close()
    while around:
        close()
    write(len(marked.text), "")
    return MarkedText("".join(parts), tuple(others))
