"""Learning completions alone: of a text, what stands between a mark and the next end.

    7042=7042\\n      after "=" and until "\\n" the labels are the second 7042 and its line end
    ............LLLLL

A label counts if, of the marks that end before it, the last is `after` and not `until`. So what
ends a completion is learnt too, and what goes on from the row before is not.
"""

from typing import NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor

from outrider.config import Config
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError
from outrider.training.objectives.base import IGNORED, Inputs

__all__ = ["CompletionConfig", "Completions", "labels_of"]


class CompletionConfig(Config):
    """Which parts of a text a language_model learns to write."""

    after: str = Field(min_length=1)
    """Text before a completion, such as `Answer:`."""
    until: str = Field(default="\n", min_length=1)
    """Text with which a completion ends; it is learnt too."""


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
        text_T = torch.from_numpy(prepared.reader("train").ids(0, "target_ids").flat.astype("i8"))
        if (found.labels(text_T[None]) == IGNORED).all():
            raise ConfigError(
                "train.completions.after",
                f"got {config.after!r}, tokens {[*after]}, which the first {len(text_T):,} tokens "
                "to train on do not have; expected a mark as the text has it",
            )
        return found

    def labels(self, label_BT: Tensor) -> Tensor:
        """Ignore all labels but those of completions."""
        place_T = torch.arange(label_BT.shape[1], device=label_BT.device)
        begun_BT = torch.where(_ends(label_BT, self.after), place_T, -1).cummax(1).values
        done_BT = torch.where(_ends(label_BT, self.until), place_T, -1).cummax(1).values
        within_BT = torch.zeros_like(label_BT, dtype=torch.bool)
        within_BT[:, 1:] = (begun_BT > done_BT)[:, :-1]
        return label_BT.masked_fill(~within_BT, IGNORED)


def labels_of(inputs: Inputs, completions: Completions | None) -> Tensor:
    """All labels of a batch, or those of its completions."""
    return inputs["labels"] if completions is None else completions.labels(inputs["labels"])


def _ends(label_BT: Tensor, mark: tuple[int, ...]) -> Tensor:
    """True where the last token of a mark stands."""
    ends_BT = torch.zeros_like(label_BT, dtype=torch.bool)
    if mark and label_BT.shape[1] >= len(mark):
        mark_M = torch.tensor(mark, device=label_BT.device)
        ends_BT[:, len(mark) - 1 :] = (label_BT.unfold(1, len(mark), 1) == mark_M).all(2)
    return ends_BT
