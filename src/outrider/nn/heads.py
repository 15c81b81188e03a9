"""Multi-head attention: projections around an attention variant.

Queries, keys and values of self-attention come from one matrix product; the keys and values of
cross-attention are computed once per source and shared by every step.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from outrider.nn.attention.base import AttentionBase
from outrider.nn.cache import LayerCache, Step
from outrider.nn.dense import attend
from outrider.nn.linear import Linear
from outrider.nn.position import Positions, Rotary

__all__ = ["CrossAttention", "SelfAttention", "Source"]


class Source(NamedTuple):
    """What one layer's cross-attention reads: keys, values, and which of them are real."""

    k_BHSK: Tensor
    v_BHSK: Tensor
    keep_BS: Tensor | None


class SelfAttention(nn.Module):
    """Tokens of one sequence look at each other under a pattern."""

    def __init__(
        self,
        width: int,
        heads: int,
        attention: AttentionBase,
        *,
        kv_heads: int | None = None,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_width = width // heads
        self.attention = attention
        self.rotary = rotary
        self.qkv = Linear(width, (heads + 2 * self.kv_heads) * self.head_width)
        self.out = Linear(heads * self.head_width, width)

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """One whole pass from position 0."""
        q, k, v = self.project(x_BTD, positions)
        return self.merge(self.attention(q, k, v, keep_BT=keep_BT))

    def extend(self, x_BTD: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """Append tokens to the cache and attend from them."""
        q, k, v = self.project(x_BTD, step.positions)
        return self.merge(self.attention.extend(q, k, v, cache, step))

    def new_cache(self, rows: int, capacity: int) -> LayerCache:
        """Room for `capacity` tokens a row, as far as the pattern needs them."""
        weight, slots = self.qkv.weight, self.attention.slots(capacity)
        return LayerCache(
            rows, self.kv_heads, slots, self.head_width, dtype=weight.dtype, device=weight.device
        )

    def project(self, x_BTD: Tensor, positions: Positions) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, turned by their positions where that is asked for."""
        qkv = self.qkv(x_BTD).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.rotary is not None:
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        return q, k, v

    def merge(self, out_BHTK: Tensor) -> Tensor:
        """Put the heads together again."""
        return self.out(out_BHTK.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Target tokens look at the source."""

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.dropout = dropout
        self.q = Linear(width, width)
        self.kv = Linear(width, 2 * width)
        self.out = Linear(width, width)

    def source(self, memory_BSD: Tensor, keep_BS: Tensor | None) -> Source:
        """Project the encoder's output once; every later step reads this."""
        kv = self.kv(memory_BSD).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        k, v = kv.chunk(2, dim=1)
        if not torch.is_grad_enabled():
            k, v = k.contiguous(), v.contiguous()  # read at every step
        return Source(k, v, keep_BS)

    def forward(self, x_BTD: Tensor, source: Source) -> Tensor:
        """Attend to the source; rows may be several times the sources (beams of one sentence)."""
        rows, tokens, _ = x_BTD.shape
        beams = rows // source.k_BHSK.shape[0]
        q = self.q(x_BTD).view(-1, beams * tokens, self.heads, self.head_width).transpose(1, 2)
        keep = None if source.keep_BS is None else source.keep_BS[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        out = attend(q, source.k_BHSK, source.v_BHSK, keep=keep, dropout=dropout)
        return self.out(out.transpose(1, 2).reshape(rows, tokens, -1))
