"""Causal attention (Vaswani et al., 2017, arXiv:1706.03762): a token sees itself and its past.

    S_i = {j : j <= i}

Time O(T^2 K), memory O(T K); decoding keeps every token. Rows are padded on the right, behind every
real query, so no padding mask is needed.
"""

from dataclasses import dataclass

from torch import Tensor

from outrider.torch.nn.attention.base import AttentionBase, AttentionConfig, Cost
from outrider.torch.nn.kernel.dense import attend


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """`kind: causal` has no options of its own."""


class Attention(AttentionBase):
    """Causal mask; in an encoder it gives a one-directional encoder."""

    halting_ok = True

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is not after i."""
        return j <= i

    def cost(self, length: int) -> Cost:
        """Return about half of all pairs."""
        return Cost(pairs=length * (length + 1) // 2, slots=length)

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Attend under the causal mask."""
        return attend(q_BHTK, k_BGTK, v_BGTK, causal=True, dropout=self.active_dropout)
