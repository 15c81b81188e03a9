"""Labels of masked language models and of completions.

Masking (BERT, Devlin et al., 2019, arXiv:1810.04805) selects `share` of the tokens of a row, at
least one. Of these,

    `hidden`  are replaced by the mask token,
    `random`  by a random token,
    the rest  are unchanged.

Special tokens are never selected. The selection depends on seed, epoch, block and row only, so a
resumed run makes the same one.

Completions: only text between the marks `after` and `until` has labels.

    7042=7042\n      with after "=" and until "\n", the second 7042 and its line end
    ............LLLLL

A position has a label if the last mark that ends before it is `after`. The end of a completion
therefore has a label too. Of a completion that is divided between two rows, the second part has no
labels, because a model without memory does not see the mark; with a memory it has.
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

IGNORED = -100
"""Label without loss: the `ignore_index` of PyTorch's cross-entropy."""
IntArray = NDArray[np.integer[Any]]
BoolArray = NDArray[np.bool_]


class Completions(NamedTuple):
    """The marks around completions, as tokens."""

    after: tuple[int, ...]
    until: tuple[int, ...]

    @classmethod
    def of(cls, config: CompletionConfig, prepared: Prepared) -> Self:
        """Encode the marks; raise an error if the training text has no completions."""
        after, until = (
            tuple(prepared.tokenizer.encode(text)) for text in (config.after, config.until)
        )
        completions = cls(after, until)
        text_T = prepared.reader("train").ids(0, "target_ids").flat
        if (completions.labels(text_T) == IGNORED).all():
            raise ConfigError(
                "train.completions.after",
                f"got {config.after!r}, tokens {[*after]}, which do not occur in the first "
                f"{len(text_T):,} training tokens; expected a mark of the text",
            )
        return completions

    def labels(self, ids: IntArray) -> NDArray[np.int64]:
        """Return the labels of rows [..., T], with all tokens outside completions ignored."""
        place_T = np.arange(ids.shape[-1])
        begun, done = (
            np.maximum.accumulate(np.where(_ends(ids, mark), place_T, -1), axis=-1) for mark in self
        )
        within = np.zeros(ids.shape, np.bool_)
        within[..., 1:] = (begun > done)[..., :-1]
        return np.where(within, ids, np.int64(IGNORED))

    def decided(self, ids: IntArray) -> bool:
        """Whether a row [T] determines if a completion continues after it."""
        # A mark that begins before the row may end after the first marks found in it.
        whole = max(len(self.after), len(self.until)) - 1
        return bool((_ends(ids, self.after) | _ends(ids, self.until))[whole:].any())


def _ends(ids: IntArray, mark: tuple[int, ...]) -> BoolArray:
    """Mark the positions of the last token of a mark."""
    ends = np.zeros(ids.shape, np.bool_)
    if mark and ids.shape[-1] >= len(mark):
        ends[..., len(mark) - 1 :] = (sliding_window_view(ids, len(mark), -1) == mark).all(-1)
    return ends


Int32Array = NDArray[np.int32]

PLACES, FATES, TOKENS = 6, 7, 8
"""Keys of the random numbers, distinct from those of the batch plan and augmentation."""


@dataclass(frozen=True)
class Masking:
    """Masks the tokens of a block."""

    config: MaskConfig
    mask: int
    """Id of the mask token."""
    special: frozenset[int]
    """Ids that are neither selected nor used as random tokens."""
    vocab_size: int
    seed: int = 0

    @classmethod
    def of(
        cls, tokenizer: MaskTokenizer, config: MaskConfig | None = None, *, seed: int = 0
    ) -> "Masking":
        """Build the masking for a tokenizer; by default as BERT."""
        ids = (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id, tokenizer.unk_id)
        special = frozenset({*ids, tokenizer.mask_id})
        config = config or MaskConfig()
        return cls(config, tokenizer.mask_id, special, tokenizer.vocab_size, seed)

    def __call__(self, text: Ragged, block: int, epoch: int = 0) -> tuple[Int32Array, Int32Array]:
        """Return the masked tokens of a block, and the labels, -100 for tokens not selected."""
        ids_N = text.flat
        chosen_N = self._choose(text, self._random(len(ids_N), epoch, PLACES, block))
        fate_N = self._random(len(ids_N), epoch, FATES, block)
        hidden, changed = self.config.hidden, self.config.hidden + self.config.random
        tokens = np.setdiff1d(np.arange(self.vocab_size), list(self.special))
        number_N = self._random(len(ids_N), epoch, TOKENS, block)
        masked_N = ids_N.copy()
        changed_N = chosen_N & (fate_N < changed)
        masked_N[changed_N] = tokens[(number_N[changed_N] * len(tokens)).astype(np.int64)]
        masked_N[chosen_N & (fate_N < hidden)] = self.mask
        return masked_N, np.where(chosen_N, ids_N, np.int32(IGNORED))

    def _random(self, count: int, epoch: int, key: int, block: int) -> NDArray[np.float64]:
        return random_uniform(count, self.seed, epoch, key, block)

    def _choose(self, text: Ragged, number_N: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Select the positions of the lowest numbers in every row."""
        free_N = ~np.isin(text.flat, list(self.special))
        row_N = np.repeat(np.arange(len(text.lengths)), text.lengths)
        free_R = np.bincount(row_N, free_N, minlength=len(text.lengths))
        wanted_R = np.minimum(free_R, np.maximum(1, np.rint(self.config.share * free_R)))
        order_N = np.lexsort((np.where(free_N, number_N, 2.0), row_N))
        rank_N = np.empty(len(order_N), np.int64)
        rank_N[order_N] = np.arange(len(order_N)) - text.offsets[row_N]
        return rank_N < wanted_R[row_N]
