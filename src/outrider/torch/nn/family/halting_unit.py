"""When to stop thinking (adaptive computation time, Graves, 2016, arXiv:1603.08983).

    p_n = sigmoid(w . s_n + b)                       after step n, s_n the state
    N   = the first n with p_1 + ... + p_n >= threshold, or the last step
    R   = 1 - (p_1 + ... + p_{N-1})                  the remainder
    weight of step n = p_n before N, and R at N
    ponder cost = mean of N + R over the tokens that are not padding

A shared layer thinks so about all tokens at once (`nn.stack.halting`), a recurrent cell about one
after the other (`nn.layer.pondering`).
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from outrider.config import Config

__all__ = ["Halting", "HaltingConfig", "Pondered", "Ponders", "Turn", "weigh"]


class HaltingConfig(Config):
    """Keys of `halting`."""

    threshold: float = Field(default=0.99, gt=0, le=1)
    """A token halts when its probabilities sum to this."""
    ponder: float = Field(default=0.01, ge=0)
    """Weight of the ponder cost in the loss."""
    bias: float = 1.0
    """First b: the larger, the sooner tokens halt at the start of training."""


class Pondered(NamedTuple):
    """How long the tokens of a batch thought."""

    steps_BT: Tensor
    """N, 0 for padding."""
    remainder_BT: Tensor
    """R, 0 for padding."""

    def cost(self) -> Tensor:
        """Return the mean of N + R over the tokens that are not padding."""
        tokens = (self.steps_BT > 0).sum().clamp(min=1)
        return (self.steps_BT + self.remainder_BT).sum() / tokens


class Ponders:
    """A part that remembers how long it thought, and what training is to pay for it."""

    pondered: Pondered | None = None
    """What the last whole pass came to."""
    _cost: Tensor | None = None

    def record(self, pondered: Pondered, price: float | None) -> None:
        """Remember a whole pass; in training at so much a step."""
        self.pondered = Pondered(*(part.detach() for part in pondered))
        if price is not None:
            self._cost = price * pondered.cost()

    def penalty(self) -> Tensor | None:
        """Return the weighted ponder cost of the last whole pass in training, once."""
        cost, self._cost = self._cost, None
        return cost


class Halting(nn.Module):
    """The chance that a token has thought enough."""

    def __init__(self, width: int, config: HaltingConfig) -> None:
        super().__init__()
        self.config = config
        self.weight_D = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def reset(self) -> None:
        """Draw the first weights."""
        bound = (6 / (len(self.weight_D) + 1)) ** 0.5
        nn.init.uniform_(self.weight_D, -bound, bound)
        nn.init.constant_(self.bias, self.config.bias)

    def forward(self, state_BAD: Tensor) -> Tensor:
        """Return p, in no less than float32: it is summed and compared."""
        wide = torch.promote_types(state_BAD.dtype, torch.float32)
        return ((state_BAD.to(wide) * self.weight_D).sum(-1) + self.bias).sigmoid()


class Turn(NamedTuple):
    """What one step comes to."""

    halts: Tensor
    """Whether it is the last of a token."""
    weight: Tensor
    remainder: Tensor
    """R where it is the last, else 0."""


def weigh(p: Tensor, before: Tensor, *, threshold: float, last: bool) -> Turn:
    """Weigh a step whose chance is `p` after steps whose chances sum to `before`."""
    halts, left = (before + p >= threshold) | last, 1 - before
    return Turn(halts, torch.where(halts, left, p), torch.where(halts, left, 0.0))
