"""Local attention in blocks (Image Transformer 1D, Parmar et al., 2018, arXiv:1802.05751).

    s(i) = floor(i / c) c                                    where the block of i begins
    causal      S_i = {j : s(i) - m <= j <= i}
    two-sided   S_i = {j : s(i) - m <= j < s(i) + c}

c is `block` and m is `memory`: a token sees its own block and the m tokens before it. Time
O(T (c + m) K), memory O(T K). Decoding keeps c + m - 1 tokens (and the slack of one extend),
whatever the length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.nn.attention.base import AttentionConfig, Cost
from outrider.torch.nn.attention.tiled import TiledAttention
from outrider.torch.nn.cache import SLACK
from outrider.torch.nn.kernel.tiles import Tile, block_tiles

__all__ = ["Attention", "Config"]


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """Options of `kind: local`."""

    block: int = 256
    """Tokens of a block."""
    memory: int = 256
    """Tokens before its block that a query sees too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block < 1:
            raise ConfigError("attention.block", f"got {self.block}, expected 1 or more")
        if self.memory < 0:
            raise ConfigError("attention.memory", f"got {self.memory}, expected 0 or more")


class Attention(TiledAttention):
    """Blocks, each with a memory of what came before it."""

    config: Config

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """In the own block or its memory, and not ahead where causal."""
        block, memory = self.config.block, self.config.memory
        start = i // block * block
        return (j >= start - memory) & (j <= i if self.causal else j < start + block)

    def slots(self, capacity: int) -> int:
        """A block and its memory, and what one extend may add before old ones can be forgotten."""
        return min(capacity, self.config.block + self.config.memory - 1 + SLACK)

    def cost(self, length: int) -> Cost:
        """A block's own pairs, and those with its memory as far as there is one."""
        pairs = 0
        for start in range(0, length, self.config.block):
            size = min(self.config.block, length - start)
            own = size * (size + 1) // 2 if self.causal else size * size
            pairs += own + size * min(start, self.config.memory)
        return Cost(pairs=pairs, slots=self.slots(length))

    def complete(self, length: int) -> bool:
        """One block holds all, or the memory of the last reaches the start and none looks ahead."""
        block = self.config.block
        last = (length - 1) // block * block
        return last == 0 or (self.causal and last <= self.config.memory)

    def tiles(self, length: int, device: torch.device) -> list[Tile]:
        """A tile of all blocks with their memories."""
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
