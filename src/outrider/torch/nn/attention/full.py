"""Full attention (Vaswani et al., 2017, arXiv:1706.03762): every token sees every real token.

    S_i = {all j that are not padding}

Time O(T^2 K), memory O(T K). For encoders.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.torch.nn.attention.base import AttentionBase, AttentionConfig, Cost
from outrider.torch.nn.kernel.dense import attend


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """`kind: full` has no options of its own."""


class Attention(AttentionBase):
    """Every query sees every real key."""

    causal_ok = False
    halting_ok = True
    skipping_ok = True

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return True everywhere."""
        return torch.ones_like(i + j, dtype=torch.bool)

    def cost(self, length: int) -> Cost:
        """Return all pairs."""
        return Cost(pairs=length * length, slots=length)

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Attend with padding as the only mask."""
        keep = None if keep_BT is None else keep_BT[:, None, None, :]
        return attend(q_BHTK, k_BGTK, v_BGTK, keep=keep, dropout=self.active_dropout)
