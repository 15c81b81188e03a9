"""Objectives: the loss of a batch, and the number of its targets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from outrider.torch.models.base import TokenModel
from outrider.torch.nn.loss import IGNORED

Inputs = Mapping[str, Tensor]


class Objective:
    """The cross-entropy of `labels` that the model itself computes.

    loss = sum_t -log p(label_t)
    """

    def count(self, inputs: Inputs) -> int:
        """Return the number of targets of the batch."""
        return int((inputs["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        """Return the summed loss of all targets, divided by `divisor`."""
        output = self.run(model, inputs, divisor, smoothing)
        return add_penalty(output.loss, model, self.count(inputs) / divisor)

    def run(
        self, model: nn.Module, inputs: Inputs, divisor: float, smoothing: float, **options: Any
    ) -> Any:
        """Run the model on a batch with its labels."""
        return model(**inputs, label_smoothing=smoothing, num_items_in_batch=divisor, **options)

    def set_progress(self, progress: float) -> None:
        """Set the share of all updates that are done; called before every update."""

    def save(self, folder: Path, *, process: int) -> None:
        """Write the state of this process, if any, into a checkpoint."""

    def load(self, folder: Path, *, process: int) -> None:
        """Read the state of this process, if any, from a checkpoint."""


def unwrapped(model: nn.Module) -> Any:
    """Return the model that DDP wraps, or the model itself."""
    return getattr(model, "module", model)


def add_penalty(loss: Tensor, model: nn.Module, share: float) -> Tensor:
    """Add the penalties of attentions to a training loss.

    `share` is the batch's part of the update's targets. The shares sum to one, so the penalty
    counts once for any number of batches and processes.
    """
    inner = unwrapped(model)
    if not (model.training and isinstance(inner, TokenModel)):
        return loss
    penalty = inner.penalty()
    return loss if penalty is None else loss + share * penalty
