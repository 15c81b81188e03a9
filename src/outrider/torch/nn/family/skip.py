"""Skipping: layers that leave out rare tokens and padding (FAT, section 3.2).

    active(i) = token i is no padding, and count(token i) >= below * V      V the vocabulary's size
    layer     = y_i from the active tokens alone where i is active,  y_i = x_i where it is not

`count` is the number of occurrences of a token in the training data. The active tokens of every row
are packed and the layer runs on these; skipped tokens are masked as keys and cost nothing.
"""

import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from outrider.config import Config
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.layer.heads import Source
from outrider.torch.nn.norm import Norm
from outrider.torch.nn.position import Positions
from outrider.torch.nn.position.coordinate import CoordinatePosition
from outrider.torch.nn.stack import Stack
from outrider.torch.nn.stack.pack import Pack

UNCOUNTED = 1 << 62


class SkipConfig(Config):
    """Keys of `skip`."""

    below: float = Field(ge=0)
    """Tokens that occur less often than this times the vocabulary's size are skipped."""
    layers: tuple[int, ...] | None = None
    """Layers that skip, counted from 0; null for all."""


class Router(nn.Module):
    """Selects the active tokens."""

    count_V: Tensor

    def __init__(self, vocabulary: int, *, below: float) -> None:
        super().__init__()
        self.least = math.ceil(below * vocabulary)
        # Saved with the weights. Before counts are set, all tokens are active.
        self.register_buffer("count_V", torch.full((vocabulary,), UNCOUNTED))

    def set_counts(self, count_V: Tensor) -> None:
        """Set the number of occurrences of every token in the training data."""
        self.count_V.copy_(count_V)

    def forward(self, ids_BT: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Return the mask of active tokens."""
        active_BT = self.count_V[ids_BT] >= self.least
        return active_BT if keep_BT is None else active_BT & keep_BT


class SkippingStack(Stack):
    """An encoder with layers that run on the active tokens only."""

    def __init__(
        self,
        blocks: Sequence[Block],
        layers: Sequence[int] | None,
        *,
        norm: Norm | None,
        coordinate: CoordinatePosition | None = None,
    ) -> None:
        super().__init__(blocks, norm=norm, coordinate=coordinate)
        self.layers = frozenset(range(len(blocks)) if layers is None else layers)

    def forward(
        self,
        x_BTD: Tensor,
        positions: Positions,
        keep_BT: Tensor | None = None,
        sources: Sequence[Source | None] | None = None,
        seen: list[Tensor] | None = None,
        active_BT: Tensor | None = None,
    ) -> Tensor:
        """Run a whole pass; `active_BT` marks the tokens of layers that skip."""
        assert sources is None, "an encoder has no source"
        if active_BT is None:
            return super().forward(x_BTD, positions, keep_BT, sources, seen)
        pack = Pack.of(active_BT, shrink=not self._hooked)
        for layer, block in enumerate(self.blocks):
            if layer not in self.layers:
                x_BTD = block(self.locate(x_BTD, positions, layer), positions, keep_BT)
            elif pack.tokens:
                here = pack.positions(positions)
                x_BAD = self.locate(pack.gather(x_BTD), here, layer)
                x_BTD = pack.scatter(x_BTD, block(x_BAD, here, pack.real_BA))
            if seen is not None:
                seen.append(x_BTD)
        return x_BTD if self.norm is None else self.norm(x_BTD)

    @property
    def _hooked(self) -> bool:
        """Whether hooks record attention weights, which need all tokens in place."""
        return any(block.attention.attention._forward_pre_hooks for block in self.blocks)
