"""What an objective is: which targets a batch holds, and the loss of predicting them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from outrider.torch.models.base import TokenModel
from outrider.torch.nn.loss import IGNORED

__all__ = ["IGNORED", "Inputs", "Objective", "StatefulObjective", "add_penalty"]

Inputs = Mapping[str, Tensor]


class Objective(Protocol):
    """A pure function of model and batch, stateless unless it is a `StatefulObjective`."""

    def count(self, inputs: Inputs) -> int:
        """How many targets the batch holds."""
        ...

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        """The summed loss of all targets, divided by `divisor`."""
        ...


@runtime_checkable
class StatefulObjective(Protocol):
    """An objective that carries something from batch to batch, which a resume must find again."""

    def save(self, folder: Path, *, process: int) -> None:
        """Write what this process carries into a checkpoint."""
        ...

    def load(self, folder: Path, *, process: int) -> None:
        """Read it again."""
        ...


def add_penalty(loss: Tensor, model: nn.Module, share: float) -> Tensor:
    """Add to a training loss what attentions ask for.

    `share` is the batch's part of the update's targets. These sum to one, so the penalty counts
    once however many batches and processes an update has.
    """
    inner = getattr(model, "module", model)  # several processes wrap the model
    if not (model.training and isinstance(inner, TokenModel)):
        return loss
    penalty = inner.penalty()
    return loss if penalty is None else loss + share * penalty
