"""Division of texts into pieces that fit a model, and joining of their translations.

Texts are divided at line breaks and at ends of sentences, because a model that was trained on
sentences translates one and drops the others. Without splitting, a line is divided only if it is
too long. Sentences that are too long are cut.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.text import sentences
from outrider.text.normalise import normalise, well_formed
from outrider.text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """A part of a text, and the token ids of its normalised form."""

    text: str
    ids: list[int]


@dataclass
class Segments:
    """The pieces of one text; `gaps` is the white space between them."""

    ids: list[list[int]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    def join(self, parts: Sequence[str]) -> str:
        """Join the translations of all pieces, or of the first ones."""
        return sentences.join(list(parts), self.gaps[: max(0, len(parts) - 1)])


def segment(
    texts: Sequence[str], tokenizer: Tokenizer, *, longest: int, split: bool = True
) -> list[Segments]:
    """Divide every text into sentences, or lines, of at most `longest` tokens."""

    def fits(text: str) -> bool:
        return len(tokenizer.encode(normalise(text))) <= longest

    def cut(text: str) -> list[str]:
        return sentences.cut(text, fits)

    rows = [_divide_lines(well_formed(text), split) for text in texts]
    encoded = iter(_encode([part for row in rows for part in row], tokenizer))
    segmented = []
    for row in rows:
        pieces = [next(encoded) for _ in row]
        if not split:
            pieces = _divide(pieces, tokenizer, above=longest, into=sentences.split)
        pieces = _divide(pieces, tokenizer, above=longest, into=cut)
        segmented.append(_without_blanks(pieces, longest))
    return segmented


def _divide_lines(text: str, split: bool) -> list[str]:
    return sentences.split(text) if split else text.splitlines(keepends=True)


def _encode(texts: Iterable[str], tokenizer: Tokenizer) -> list[Piece]:
    texts = list(texts)
    rows = tokenizer.encode_batch([normalise(text) for text in texts])
    return [Piece(text, ids) for text, ids in zip(texts, rows, strict=True)]


def _divide(
    pieces: list[Piece], tokenizer: Tokenizer, *, above: int, into: Callable[[str], list[str]]
) -> list[Piece]:
    divided: list[Piece] = []
    for piece in pieces:
        if len(piece.ids) > above:
            divided += _encode(into(piece.text), tokenizer)
        else:
            divided.append(piece)
    return divided


def _without_blanks(pieces: list[Piece], longest: int) -> Segments:
    """Move white space between pieces, and blank pieces, into the gaps."""
    segments, gap = Segments(), ""
    for text, ids in pieces:
        if not ids:
            gap += "".join(c for c in text if c.isspace())
            continue
        lead, trail = len(text) - len(text.lstrip()), len(text.rstrip())
        if segments.ids:
            segments.gaps.append(gap + text[:lead])
        # A single character may have more tokens than fit; the rest is dropped.
        segments.ids.append(ids[:longest])
        gap = text[trail:]
    return segments
