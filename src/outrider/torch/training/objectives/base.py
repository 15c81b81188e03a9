"""The interface of objectives."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from outrider.torch.models.base import TokenModel

Inputs = Mapping[str, Tensor]


class Objective(Protocol):
    """Loss and target count of a batch; stateless unless it is a `StatefulObjective`."""

    def count(self, inputs: Inputs) -> int:
        """Return the number of targets of the batch."""
        ...

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        """Return the summed loss of all targets, divided by `divisor`."""
        ...


@runtime_checkable
class StatefulObjective(Protocol):
    """An objective with state that a checkpoint must save."""

    def save(self, folder: Path, *, process: int) -> None:
        """Write the state of this process into a checkpoint."""
        ...

    def load(self, folder: Path, *, process: int) -> None:
        """Read the state of this process from a checkpoint."""
        ...


def add_penalty(loss: Tensor, model: nn.Module, share: float) -> Tensor:
    """Add the penalties of attentions to a training loss.

    `share` is the batch's part of the update's targets. The shares sum to one, so the penalty
    counts once for any number of batches and processes.
    """
    inner = getattr(model, "module", model)  # unwrap DDP
    if not (model.training and isinstance(inner, TokenModel)):
        return loss
    penalty = inner.penalty()
    return loss if penalty is None else loss + share * penalty
