"""Typical errors of parallel decoders: repeated words, and wrong lengths.

repetition rate = words equal to the word before them / all words
length ratio    = words of the translations / words of the references
"""

from collections.abc import Sequence
from itertools import pairwise

from outrider.errors import InputError


def repetition_rate(texts: Sequence[str]) -> float:
    """Return the share of words equal to the word before them; 0 without words."""
    lines = [text.split() for text in texts]
    words = sum(map(len, lines))
    repeated = sum(a == b for line in lines for a, b in pairwise(line))
    return repeated / words if words else 0.0


def length_ratio(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the words of the translations per word of the references."""
    if len(hypotheses) != len(references):
        raise InputError(
            f"{len(hypotheses)} translations against {len(references)} references; "
            "source and reference must have the same number of lines"
        )
    words, expected = (
        sum(len(text.split()) for text in texts) for texts in (hypotheses, references)
    )
    if not expected:
        raise InputError("the references contain no words, so there is no length ratio")
    return words / expected
