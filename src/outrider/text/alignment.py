"""Alignments: which part of a source text became which part of its translation."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import combining

from outrider.text.normalise import normalise

if TYPE_CHECKING:
    from outrider.text.sentences import Segments
    from outrider.text.tokenizer import Tokenizer

Range = tuple[int, int]
"""First character, and the one after the last."""


class Link(NamedTuple):
    """One token of a translation and the source token it is aligned with, as characters."""

    source: Range
    target: Range


Alignment = tuple[Link, ...]
"""One link for each aligned target token, in the order of the target."""


def trim(text: str, start: int, end: int) -> Range:
    """Return a range without the white space at its ends."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())


def original_offsets(text: str, normal: str) -> list[int]:
    """Return the place in `text` of each character of its normalised form, and of its end."""
    if (start := text.find(normal)) >= 0:
        return [*range(start, start + len(normal) + 1)]
    offsets: list[int] = []
    at = 0
    while at < len(text) and len(offsets) < len(normal):
        end = at + 1
        if text[at].isspace():
            count = int(normal[len(offsets)] == " ")  # collapsed
        else:
            while end < len(text) and (combining(text[end]) or _composes(text[at], text[end])):
                end += 1
            count = len(normalise(text[at:end]))
        offsets += [at] * min(count, len(normal) - len(offsets))
        at = end
    return offsets + [at] * (len(normal) + 1 - len(offsets))


def _composes(first: str, character: str) -> bool:
    """Whether a character belongs to the Hangul syllable that `first` begins."""
    hangul = "\u1100" <= first <= "\u115f" or "\uac00" <= first <= "\ud7a3"
    return hangul and "\u1160" <= character <= "\u11ff"


def token_ranges(
    decode_batch: Callable[[Sequence[Sequence[int]]], list[str]], tokens: Sequence[int]
) -> tuple[str, list[Range]]:
    """Return the text of target tokens, and the characters that each token adds."""
    *prefixes, text = decode_batch([tokens[:end] for end in range(1, len(tokens) + 1)])
    ends = [_common(prefix, text) for prefix in prefixes] + [len(text)]
    ranges, start = [], 0
    for end in ends:
        ranges.append(trim(text, min(start, end), end))
        start = max(start, end)
    return text, ranges


def _common(prefix: str, text: str) -> int:
    """Count the characters at which two texts begin alike."""
    if text.startswith(prefix):
        return len(prefix)
    pairs = zip(prefix, text, strict=False)
    return next(place for place, (one, other) in enumerate([*pairs, ("", " ")]) if one != other)


def text_links(
    tokenizer: "Tokenizer",
    text: "Segments",
    written: Sequence[Sequence[int]],
    places: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    before: int,
) -> Alignment:
    """Return the links of a text that was translated in segments.

    Args:
        tokenizer: The model's.
        text: The segments of the source.
        written: Target tokens of each segment.
        places: For each of them the place of its source token; `before` is the first of the text.
        starts: Offset of each segment in the translation.
        before: Tokens before those of a text.
    """
    links: list[Link] = []
    for piece, at, tokens, row, start in zip(
        text.pieces, text.starts, written, places, starts, strict=False
    ):
        if not row:
            continue
        normal = normalise(piece.text)
        offsets = original_offsets(piece.text, normal)
        sources = tokenizer.source_ranges(normal)[: len(piece.ids)]
        decoded, targets = token_ranges(tokenizer.decode_batch, tokens)
        lead = start - (len(decoded) - len(decoded.lstrip()))
        for place, (first, last) in zip(row, targets, strict=True):
            if first < last and 0 <= place - before < len(sources):
                source = trim(piece.text, *(offsets[end] for end in sources[place - before]))
                if source[0] < source[1]:
                    left, right = source
                    links.append(Link((at + left, at + right), (lead + first, lead + last)))
    return tuple(links)


def compose(first: Alignment, second: Alignment) -> Alignment:
    """Align the source of the first translation with the target of the second.

    Each link of the second is connected with the link of the first that it overlaps most.
    """
    links = []
    ends = [link.target[1] for link in first]
    for link in second:
        start, end = link.source
        best, most = None, 0
        for other in first[bisect_right(ends, start) :]:
            if other.target[0] >= end:
                break
            overlap = min(end, other.target[1]) - max(start, other.target[0])
            if overlap > most:
                best, most = other, overlap
        if best is not None:
            links.append(Link(best.source, link.target))
    return tuple(links)
