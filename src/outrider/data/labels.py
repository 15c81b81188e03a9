"""Masking (BERT, Devlin et al., 2019, arXiv:1810.04805): the tokens that a model has to guess.

    of every row, `share` of its tokens are asked for, at least one; of these
    `hidden`  are shown as the mask,
    `random`  as any token at all,
    the rest  as they are

so that a model must know every token again, for it cannot be sure of any. Special tokens are never
asked for. What is asked follows from seed, epoch, block and row alone, whatever batch a row is in,
so a run that was killed goes on with the same questions; another epoch asks others.

Learning completions alone: of a text, what stands between a mark and the next end.

    7042=7042\n      after "=" and until "\n" the labels are the second 7042 and its line end
    ............LLLLL

A label counts if, of the marks that end before it, the last is `after` and not `until`. So what
ends a completion is learnt too. Of a completion that a row has cut in two, only the part behind its
mark is learnt: a model sees nothing of the row before. With a memory it does, and learns both.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from outrider.data.config import CompletionConfig, MaskConfig
from outrider.data.plan import random_uniform
from outrider.data.prepared import Prepared
from outrider.data.shards import Ragged
from outrider.errors import ConfigError
from outrider.text.tokenizer.vocabulary import MaskTokenizer

__all__ = ["IGNORED", "Completions", "Masking"]

IGNORED = -100
"""Label of a token that is not learnt; the `ignore_index` of PyTorch's cross-entropy."""
IntArray = NDArray[np.integer[Any]]
BoolArray = NDArray[np.bool_]


class Completions(NamedTuple):
    """The marks around completions, as tokens."""

    after: tuple[int, ...]
    until: tuple[int, ...]

    @classmethod
    def of(cls, config: CompletionConfig, prepared: Prepared) -> Self:
        """Look up the tokens of the marks, and whether there are completions to learn."""
        after, until = (
            tuple(prepared.tokenizer.encode(text)) for text in (config.after, config.until)
        )
        found = cls(after, until)
        text_T = prepared.reader("train").ids(0, "target_ids").flat
        if (found.labels(text_T) == IGNORED).all():
            raise ConfigError(
                "train.completions.after",
                f"got {config.after!r}, tokens {[*after]}, which the first {len(text_T):,} tokens "
                "to train on do not have; expected a mark as the text has it",
            )
        return found

    def labels(self, ids: IntArray) -> NDArray[np.int64]:
        """Ignore all tokens of rows [..., T] but those of completions."""
        place_T = np.arange(ids.shape[-1])
        begun, done = (
            np.maximum.accumulate(np.where(_ends(ids, mark), place_T, -1), axis=-1) for mark in self
        )
        within = np.zeros(ids.shape, np.bool_)
        within[..., 1:] = (begun > done)[..., :-1]
        return np.where(within, ids, np.int64(IGNORED))

    def decided(self, ids: IntArray) -> bool:
        """Whether a row [T] tells by itself if a completion goes on behind it."""
        # A longer mark may end later and begin before the row: what is found first is not enough.
        whole = max(len(self.after), len(self.until)) - 1
        return bool((_ends(ids, self.after) | _ends(ids, self.until))[whole:].any())


def _ends(ids: IntArray, mark: tuple[int, ...]) -> BoolArray:
    """True where the last token of a mark stands."""
    ends = np.zeros(ids.shape, np.bool_)
    if mark and ids.shape[-1] >= len(mark):
        ends[..., len(mark) - 1 :] = (sliding_window_view(ids, len(mark), -1) == mark).all(-1)
    return ends


Int32Array = NDArray[np.int32]

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

    def __call__(self, text: Ragged, block: int, epoch: int = 0) -> tuple[Int32Array, Int32Array]:
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
