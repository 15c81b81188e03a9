"""Causal attention (Vaswani et al., 2017, arXiv:1706.03762): a token sees itself and its past.

    S_i = {j : j <= i}

Time O(T^2 K), memory O(T K); decoding keeps every token. Rows are padded on the right, so a real
token never sees padding and no padding mask is needed.
"""

from dataclasses import dataclass

from torch import Tensor

from outrider.torch.nn.attention.base import AttentionBase, AttentionConfig, Cost
from outrider.torch.nn.kernel.dense import attend

__all__ = ["Attention", "Config"]


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """`kind: causal` has no options of its own."""


class Attention(AttentionBase):
    """The look-ahead mask. In an encoder it makes a one-directional encoder."""

    halting_ok = True

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """The past and itself."""
        return j <= i

    def cost(self, length: int) -> Cost:
        """Half of all pairs."""
        return Cost(pairs=length * (length + 1) // 2, slots=length)

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Dense attention under the triangle."""
        return attend(q_BHTK, k_BGTK, v_BGTK, causal=True, dropout=self.active_dropout)
