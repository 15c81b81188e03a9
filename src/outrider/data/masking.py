"""Masking (BERT, Devlin et al., 2019, arXiv:1810.04805): the tokens that a model has to guess.

    of every row, `share` of its tokens are asked for, at least one; of these
    `hidden`  are shown as the mask,
    `random`  as any token at all,
    the rest  as they are

so that a model must know every token again, for it cannot be sure of any. Special tokens are never
asked for. What is asked follows from seed, epoch, block and row alone, whatever batch a row is in,
so a run that was killed goes on with the same questions; another epoch asks others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.data.completions import IGNORED
from outrider.data.config import MaskConfig
from outrider.data.plan import random_uniform
from outrider.data.shards import Ragged
from outrider.text.tokenizer.mask import MaskTokenizer

__all__ = ["Masking"]

IntArray = NDArray[np.int32]

PLACES, FATES, WORDS = 6, 7, 8
"""Keys of the random numbers; the batch plan and augmentation have those below."""


@dataclass(frozen=True)
class Masking:
    """Hides tokens of whole blocks."""

    config: MaskConfig
    mask: int
    """Id of the mask."""
    special: frozenset[int]
    """Ids that are never asked for, and never shown in the place of another."""
    vocab_size: int
    seed: int = 0

    @classmethod
    def of(
        cls, tokenizer: MaskTokenizer, config: MaskConfig | None = None, *, seed: int = 0
    ) -> "Masking":
        """Return how the tokens of a tokenizer are hidden; by default as BERT does it."""
        ids = (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id, tokenizer.unk_id)
        special = frozenset({*ids, tokenizer.mask_id})
        config = config or MaskConfig()
        return cls(config, tokenizer.mask_id, special, tokenizer.vocab_size, seed)

    def __call__(self, text: Ragged, block: int, epoch: int = 0) -> tuple[IntArray, IntArray]:
        """Return what is shown of a block's rows, and what is asked for; -100 where nothing is."""
        ids_N = text.flat
        chosen_N = self._choose(text, self._draw(len(ids_N), epoch, PLACES, block))
        fate_N = self._draw(len(ids_N), epoch, FATES, block)
        hidden, changed = self.config.hidden, self.config.hidden + self.config.random
        words = np.setdiff1d(np.arange(self.vocab_size), list(self.special))
        number_N = self._draw(len(ids_N), epoch, WORDS, block)
        shown_N = ids_N.copy()
        changed_N = chosen_N & (fate_N < changed)
        shown_N[changed_N] = words[(number_N[changed_N] * len(words)).astype(np.int64)]
        shown_N[chosen_N & (fate_N < hidden)] = self.mask
        return shown_N, np.where(chosen_N, ids_N, np.int32(IGNORED))

    def _draw(self, count: int, epoch: int, what: int, block: int) -> NDArray[np.float64]:
        return random_uniform(count, self.seed, epoch, what, block)

    def _choose(self, text: Ragged, number_N: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Choose, in every row, the places of the lowest numbers."""
        free_N = ~np.isin(text.flat, list(self.special))
        row_N = np.repeat(np.arange(len(text.lengths)), text.lengths)
        free_R = np.bincount(row_N, free_N, minlength=len(text.lengths))
        wanted_R = np.minimum(free_R, np.maximum(1, np.rint(self.config.share * free_R)))
        order_N = np.lexsort((np.where(free_N, number_N, 2.0), row_N))
        rank_N = np.empty(len(order_N), np.int64)
        rank_N[order_N] = np.arange(len(order_N)) - text.offsets[row_N]
        return rank_N < wanted_R[row_N]
