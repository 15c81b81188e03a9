"""What an objective is: which targets a batch holds, and the loss of predicting them."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from outrider.nn.loss import IGNORED

__all__ = ["IGNORED", "Inputs", "Objective"]

Inputs = Mapping[str, Tensor]


class Objective(Protocol):
    """A pure function of model and batch, with no state of its own."""

    def count(self, inputs: Inputs) -> int:
        """How many targets the batch holds."""
        ...

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        """The summed loss of all targets, divided by `divisor`."""
        ...
