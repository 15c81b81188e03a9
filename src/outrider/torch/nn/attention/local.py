"""Local attention in blocks (Image Transformer 1D, Parmar et al., 2018, arXiv:1802.05751).

    s(i) = floor(i / c) c                                    where the block of i begins
    causal      S_i = {j : s(i) - m <= j <= i}
    two-sided   S_i = {j : s(i) - m <= j < s(i) + c}

c is `block` and m is `memory`: a token sees its own block and the m tokens before it. Time
O(T (c + m) K), memory O(T K). Decoding keeps c + m - 1 tokens and the slack of one extend.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.nn.attention.base import AttentionConfig, Cost
from outrider.torch.nn.attention.tiled import TiledAttention
from outrider.torch.nn.cache import SLACK
from outrider.torch.nn.kernel.tiles import Tile, block_tiles


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """Options of `kind: local`."""

    block: int = 256
    """c: tokens of a block."""
    memory: int = 256
    """m: tokens before its block that a query also sees."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block < 1:
            raise ConfigError("attention.block", f"got {self.block}, expected 1 or more")
        if self.memory < 0:
            raise ConfigError("attention.memory", f"got {self.memory}, expected 0 or more")


class Attention(TiledAttention):
    """Attention to the own block and the tokens just before it."""

    config: Config

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is in the block of i or its memory and, if causal, not after i."""
        block, memory = self.config.block, self.config.memory
        start = i // block * block
        return (j >= start - memory) & (j <= i if self.causal else j < start + block)

    def slots(self, capacity: int) -> int:
        """Return the slots of a block, its memory, and one extend."""
        return min(capacity, self.config.block + self.config.memory - 1 + SLACK)

    def cost(self, length: int) -> Cost:
        """Count the pairs within each block and with its memory."""
        pairs = 0
        for start in range(0, length, self.config.block):
            size = min(self.config.block, length - start)
            own = size * (size + 1) // 2 if self.causal else size * size
            pairs += own + size * min(start, self.config.memory)
        return Cost(pairs=pairs, slots=self.slots(length))

    def complete(self, length: int) -> bool:
        """Return whether one block holds all, or (causal) the last memory reaches the start."""
        block = self.config.block
        last = (length - 1) // block * block
        return last == 0 or (self.causal and last <= self.config.memory)

    def tiles(self, length: int, device: torch.device) -> list[Tile]:
        """Return tiles of blocks with their memories."""
        block, memory = self.config.block, self.config.memory
        if not memory:
            return block_tiles(length, block, causal=self.causal, device=device)
        return block_tiles(
            length,
            block,
            head=block if self.causal else 0,
            before=memory,
            sees=self.sees if self.causal else None,
            device=device,
        )
