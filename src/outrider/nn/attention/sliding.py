"""Sliding-window attention (Beltagy et al., 2020, arXiv:2004.05150).

    causal      S_i = {j : i - W < j <= i}
    two-sided   S_i = {j : |i - j| < W}

Time O(T W K) and memory O(T K): queries are cut into blocks of W, and a block meets only its own
and its neighbouring blocks of keys. Decoding keeps W - 1 tokens (and the slack of one extend),
whatever the length. Below `DENSE_UP_TO` windows one dense pass is faster than blocks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.errors import ConfigError
from outrider.nn.attention.base import AttentionBase, AttentionConfig, Cost
from outrider.nn.cache import SLACK
from outrider.nn.dense import attend

__all__ = ["Attention", "Config"]

DENSE_UP_TO = 4
"""Sequences of up to this many windows take the dense path."""


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """Options of `kind: sliding`."""

    window: int = 256
    """Tokens a query sees on one side, itself included."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError("attention.window", f"got {self.window}, expected 1 or more")


class Attention(AttentionBase):
    """A band around the diagonal."""

    config: Config

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Less than a window away, and not ahead where causal."""
        near = (i - j < self.config.window) & (j - i < self.config.window)
        return near & (j <= i) if self.causal else near

    def slots(self, capacity: int) -> int:
        """One window, and the tokens one extend may add before old ones can be forgotten."""
        return min(capacity, self.config.window - 1 + SLACK)

    def cost(self, length: int) -> Cost:
        """A band of W, or 2 W - 1, keys per query."""
        window = min(self.config.window, length)
        ramp = window * (window - 1) // 2
        one_side = length * window - ramp
        pairs = one_side if self.causal else 2 * one_side - length
        return Cost(pairs=pairs, slots=self.slots(length))

    def forward(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """Blocks where they pay, one dense pass otherwise."""
        length, window = q_BHTK.shape[2], self.config.window
        if self.causal:
            if length <= window:
                return attend(q_BHTK, k_BGTK, v_BGTK, causal=True, dropout=self.active_dropout)
            keep_BT = None  # right padding lies ahead of every real query
        if length <= DENSE_UP_TO * window:
            return self.reference(q_BHTK, k_BGTK, v_BGTK, keep_BT=keep_BT)
        return self._blocked(q_BHTK, k_BGTK, v_BGTK, keep_BT)

    def _blocked(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None
    ) -> Tensor:
        """Every block of W queries as a row of its own, over its 2 (causal) or 3 blocks of keys."""
        batch, heads, length, width = q_BHTK.shape
        window = self.config.window
        sides = 2 if self.causal else 3
        blocks = -(-length // window)
        fill = blocks * window - length

        def queries(x: Tensor) -> Tensor:
            x = F.pad(x, (0, 0, 0, fill)).view(batch, -1, blocks, window, width)
            return x.transpose(1, 2).flatten(0, 1)

        def keys(x: Tensor) -> Tensor:
            x = F.pad(x, (0, 0, window, fill + (sides - 2) * window))
            return x.unfold(2, sides * window, window).movedim(2, 1).transpose(-1, -2).flatten(0, 1)

        out = attend(
            queries(q_BHTK),
            keys(k_BGTK),
            keys(v_BGTK),
            keep=self._block_keep(batch, length, blocks, sides, keep_BT, q_BHTK.device),
            dropout=self.active_dropout,
        )
        out = (
            out.view(batch, blocks, heads, window, width)
            .transpose(1, 2)
            .reshape(batch, heads, -1, width)
        )
        return out[:, :, :length]

    def _block_keep(
        self,
        batch: int,
        length: int,
        blocks: int,
        sides: int,
        keep_BT: Tensor | None,
        device: torch.device,
    ) -> Tensor:
        window = self.config.window
        first = torch.arange(blocks, device=device)[:, None] * window
        i = first + torch.arange(window, device=device)
        j = first - window + torch.arange(sides * window, device=device)
        inside = (j >= 0) & (j < length)
        keep = self.sees(i[:, :, None], j[:, None, :]) & inside[:, None, :]
        if keep_BT is None:
            return keep.repeat(batch, 1, 1)[:, None]
        real = keep_BT[:, j.clamp(0, length - 1)]
        return (keep & real[:, :, None, :]).flatten(0, 1)[:, None]
