"""Learning completions alone: of a text, what stands between a mark and the next end.

    7042=7042\\n      after "=" and until "\\n" the labels are the second 7042 and its line end
    ............LLLLL

A label counts if, of the marks that end before it, the last is `after` and not `until`. So what
ends a completion is learnt too. Of a completion that a row has cut in two, only the part behind its
mark is learnt: a model sees nothing of the row before. With a memory it does, and learns both.
"""

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from outrider.data.config import CompletionConfig
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError

__all__ = ["IGNORED", "Completions"]

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
