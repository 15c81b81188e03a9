"""Sliding-window attention (Beltagy et al., 2020, arXiv:2004.05150).

    causal      S_i = {j : i - W < j <= i}
    two-sided   S_i = {j : |i - j| < W}

Time O(T W K) and memory O(T K): queries are cut into blocks, each computed with the keys around it
(`outrider.torch.nn.kernel.merge`). Decoding keeps W - 1 tokens and the slack of one extend.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.nn.attention.base import AttentionConfig, Cost
from outrider.torch.nn.attention.tiled import TiledAttention, block_of
from outrider.torch.nn.cache import SLACK
from outrider.torch.nn.kernel.tiles import Tile, block_tiles


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """Options of `kind: sliding`."""

    window: int = 256
    """W: tokens a query sees on one side, its own included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise ConfigError("attention.window", f"got {self.window}, expected 1 or more")


class Attention(TiledAttention):
    """Attention to a band around the diagonal."""

    config: Config
    halting_ok = True

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is less than a window away and, if causal, not after i."""
        near = (i - j < self.config.window) & (j - i < self.config.window)
        return near & (j <= i) if self.causal else near

    def slots(self, capacity: int) -> int:
        """Return the slots of one window and one extend."""
        return min(capacity, self.config.window - 1 + SLACK)

    def cost(self, length: int) -> Cost:
        """Return W, or 2 W - 1, keys per query."""
        window = min(self.config.window, length)
        ramp = window * (window - 1) // 2
        one_side = length * window - ramp
        pairs = one_side if self.causal else 2 * one_side - length
        return Cost(pairs=pairs, slots=self.slots(length))

    def complete(self, length: int) -> bool:
        """Return whether all tokens are within one window."""
        return length <= self.config.window

    def tiles(self, length: int, device: torch.device) -> list[Tile]:
        """Return tiles of the first window and of blocks of queries with the keys around them."""
        window = self.config.window
        return block_tiles(
            length,
            block_of(window),
            head=window if self.causal else 0,
            before=window,
            after=0 if self.causal else window,
            sees=self.sees,
            device=device,
        )
