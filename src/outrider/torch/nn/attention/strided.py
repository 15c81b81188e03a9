"""Strided sparse attention (Child et al., 2019, arXiv:1904.10509), for data with a period of l.

    A1_i = {j : i - l <= j <= i}             the last l tokens
    A2_i = {j : (i - j) mod l = 0}           the column above, if rows are l wide

With l near sqrt(T) time is O(T sqrt(T) K) and memory O(T K). The window is a band of blocks; the
columns are attention along the other axis of a [T / l, l] table. The window leaves out the tokens
of the column, so that no key counts twice. In an encoder both sets extend to both sides.

Decoding keeps l tokens for factor 1, and all tokens for factor 2 and the union, of which a step
reads only the l + T / l that it sees.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.torch.nn.attention.factored import FactorConfig, FactoredAttention
from outrider.torch.nn.attention.tiled import block_of
from outrider.torch.nn.cache import SLACK, Cache, LayerCache, SlotPlan, Step
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.kernel.tiles import StridedRange, Tile, block_tiles

PICK_FROM = 4
"""A step gathers the keys it sees if the cache holds this many times as many; else it masks."""


@dataclass(frozen=True, kw_only=True)
class Config(FactorConfig):
    """Options of `kind: strided`."""


class Attention(FactoredAttention):
    """Attention to a window and a column."""

    config: Config

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is at most a stride away."""
        return (i - j).abs() <= self.config.stride

    def far(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is a whole number of strides away."""
        return (i - j) % self.config.stride == 0

    def kept(self, capacity: int) -> int:
        """Return the slots of a window for factor 1; columns need all tokens."""
        ring = self.config.stride + SLACK
        return min(capacity, ring) if self.config.factor == 1 else capacity

    def pairs(self, length: int) -> int:
        """Count the pairs of window and column; the ends of the window are in both."""
        stride, sides = self.config.stride, 1 if self.causal else 2
        ramp = min(length, stride)
        rows, rest = divmod(length, stride)
        window = (ramp * (ramp - 1) // 2 + (length - ramp) * stride) * sides + length
        column = (stride * rows * (rows - 1) // 2 + rest * rows) * sides + length
        both = max(0, length - stride) * sides + length
        return {1: window, 2: column}.get(self.config.factor or 0, window + column - both)

    def complete(self, length: int) -> bool:
        """Return whether the window holds all, or a stride of 1 makes a single column."""
        if self.config.factor == 2:
            return self.config.stride == 1 or length == 1
        return length <= self.config.stride + 1

    def tiles(self, length: int, device: torch.device) -> list[Tile]:
        """Return tiles of the band and of the columns."""
        factor = self.config.factor
        columns = [] if factor == 1 else self._columns(length, more=factor is None)
        return columns if factor == 2 else self._band(length, device) + columns

    def _band(self, length: int, device: torch.device) -> list[Tile]:
        stride = self.config.stride
        alone = self.config.factor == 1

        def sees(i: Tensor, j: Tensor) -> Tensor:
            near = self.near(i, j) if alone else self.near(i, j) & ~self.far(i, j)
            return near & (j <= i) if self.causal else near

        return block_tiles(
            length,
            block_of(stride),
            head=stride if self.causal and alone else 0,
            before=stride,
            after=0 if self.causal else stride,
            sees=sees,
            device=device,
        )

    def _columns(self, length: int, *, more: bool) -> list[Tile]:
        """Return one tile for the columns in the table's last row, and one for the others."""
        stride = self.config.stride
        rows, rest = divmod(length, stride)
        tiles = []
        for start, sets, runs in ((0, rest, rows + 1), (rest, stride - rest, rows)):
            if sets and runs:
                column = StridedRange(start, sets, 1, runs, stride)
                tiles.append(Tile(column, column, causal=self.causal, more=more))
        return tiles

    def extend_one(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Gather the visible keys if they are few, else mask the others."""
        assert isinstance(cache, LayerCache)
        end, stride = step.positions.end, self.config.stride
        column = -(-end // stride)
        seen = column + (0 if self.config.factor == 2 else stride - 1)
        if step.fresh or self.config.factor == 1 or end < PICK_FROM * seen * step.tokens:
            return super().extend_one(q_BHTK, k_BGTK, v_BGTK, cache, step)
        k_BGCK, v_BGCK = cache.write(k_BGTK, v_BGTK, SlotPlan(step.places(cache.size), end, None))
        back_P = torch.arange(column, device=step.device) * stride
        if self.config.factor is None:
            back_P = torch.cat([back_P, torch.arange(1, stride, device=step.device)])
        at_BTP = step.positions.index_BT[:, :, None] - back_P
        return _attend_picked(q_BHTK, k_BGCK, v_BGCK, at_BTP)


def _attend_picked(q_BHTK: Tensor, k_BGCK: Tensor, v_BGCK: Tensor, at_BTP: Tensor) -> Tensor:
    """Attend from every query to the keys at its own positions; negative ones do not exist."""
    batch, heads, tokens, width = q_BHTK.shape
    picked = at_BTP.shape[2]
    index = at_BTP.clamp(min=0).flatten(1)[:, None, :, None]
    index = index.expand(batch, k_BGCK.shape[1], -1, width)

    def pick(x_BGCK: Tensor) -> Tensor:
        x = x_BGCK.gather(2, index).view(batch, -1, tokens, picked, width)
        return x.transpose(1, 2).flatten(0, 1)

    keep = (at_BTP >= 0).expand(batch, -1, -1).reshape(batch * tokens, 1, 1, picked)
    q = q_BHTK.transpose(1, 2).reshape(batch * tokens, heads, 1, width)
    out = attend(q, pick(k_BGCK), pick(v_BGCK), keep=keep)
    return out.view(batch, tokens, heads, width).transpose(1, 2)
