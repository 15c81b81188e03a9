"""Simpler simple recurrent unit in place of self-attention (Kim et al., 2019, D19-5632).

    f_t = s(W_f x_t + b_f)      c_t = f_t * c_(t-1) + (1 - f_t) * (W x_t + b)      y_t = relu(c_t)

The initial c is 0, s the logistic function. Marian's SSRU has no b. No product depends on a state:
those of a block run at once, and only the elementwise sum is sequential.
"""

import torch
from torch import Tensor, nn

from outrider.torch.nn.cache import SLACK, Cache, Step
from outrider.torch.nn.layer.recurrent import StateRing
from outrider.torch.nn.linear import Linear
from outrider.torch.nn.position import Positions


class Ssru(nn.Module):
    """An SSRU over the tokens of a sequence; same interface as `nn.layer.heads.SelfAttention`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = Linear(width, 2 * width)
        """W and b, stacked on W_f and b_f."""

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """Run a whole pass; positions and right padding have no effect."""
        return self._run(x_BTD, x_BTD.new_zeros(x_BTD.shape[0], x_BTD.shape[2])).relu()

    def extend(self, x_BTD: Tensor, cache: Cache, step: Step) -> Tensor:
        """Continue from the cached states."""
        assert isinstance(cache, StateRing), "the cache of another layer"
        c_BTD = self._run(x_BTD, cache.newest(x_BTD, step))
        cache.store(c_BTD, step)
        return c_BTD.relu()

    def new_cache(self, rows: int, capacity: int, slack: int = SLACK) -> StateRing:
        """Return an empty cache, of constant size."""
        return StateRing(rows, capacity, back=1, like=self.into.weight, slack=slack)

    def _run(self, x_BTD: Tensor, before_BD: Tensor) -> Tensor:
        dtype = self.into.weight.dtype
        # Errors accumulate along a text, so the recurrence runs in the precision of its weights.
        with torch.autocast(x_BTD.device.type, enabled=False):
            new_BTD, gate_BTD = self.into(x_BTD.to(dtype)).chunk(2, dim=-1)
            gate_BTD = gate_BTD.sigmoid()
            new_BTD = (1 - gate_BTD) * new_BTD
            c_BD, states = before_BD.to(dtype), []
            for gate_BD, new_BD in zip(gate_BTD.unbind(1), new_BTD.unbind(1), strict=True):
                c_BD = gate_BD * c_BD + new_BD
                states.append(c_BD)
        return torch.stack(states, dim=1)
