"""A small model that generates short texts, and lines in its source language."""

import torch

from outrider.torch.models import Seq2Seq
from tests.helpers import tiny

__all__ = ["ending_model", "texts"]

WORDS = ["cat", "dog", "bird", "tree", "sees", "sings", "the", "a", "in", "and"]


def texts(count: int) -> list[str]:
    """Return lines of two to eight words; the first hundred are distinct."""
    return [
        " ".join(
            WORDS[(seed * 7 + place * (3 + seed % 5)) % len(WORDS)] for place in range(2 + seed % 7)
        )
        for seed in range(count)
    ]


def ending_model(words: int, *, eos: int, longest: int, **changes: int) -> Seq2Seq:
    """Make a model of random weights whose end token grows more likely with the position."""
    model = tiny.seq2seq(
        vocab_size=words, norm="pre", position="learned", max_positions=longest, **changes
    )
    with torch.no_grad():
        place_T1 = torch.arange(longest)[:, None]
        model.decoder_position.table.weight += place_T1 * model.tokens.weight[eos]
    return model
