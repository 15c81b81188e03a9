"""Fixed sparse attention (Child et al., 2019, arXiv:1904.10509), for data without a period.

    A1_i = {j : floor(j / l) = floor(i / l)}           the own block of l tokens
    A2_i = {j : j mod l >= l - c} and i itself         the last c tokens of every block

The summary tokens of A2 pass the content of their blocks to later tokens. With l near sqrt(T) time
is O(c T sqrt(T) K) and memory O(T K). A token always sees itself: in the paper's A2 the first l - c
tokens see nothing. In an encoder both sets extend to both sides.

Decoding keeps the own block and the summaries: O(l + c T / l) tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.nn.attention.factored import FactorConfig, FactoredAttention
from outrider.torch.nn.cache import SLACK, Cache, CacheSpec, LayerCache, SlotPlan, Step
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.kernel.tiles import StridedRange, Tile, block_tiles

GROUP = 1024
"""Queries per tile over all earlier summaries."""


@dataclass(frozen=True, kw_only=True)
class Config(FactorConfig):
    """Options of `kind: fixed`."""

    summary: int = 4
    """Tokens at the end of a block that all later tokens see."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.summary <= self.stride:
            raise ConfigError(
                "attention.summary", f"got {self.summary}, expected 1 to the stride, {self.stride}"
            )


class Attention(FactoredAttention):
    """Attention to the own block and to the summaries of blocks."""

    config: Config

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is in the block of i."""
        return i // self.config.stride == j // self.config.stride

    def far(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is a summary token or i itself."""
        return self.summarises(j) | (i == j)

    def summarises(self, j: Tensor) -> Tensor:
        """Return whether j is a summary token of its block."""
        return j % self.config.stride >= self.config.stride - self.config.summary

    def summaries(self, length: int) -> int:
        """Count the summary tokens among the first `length`."""
        blocks, rest = divmod(length, self.config.stride)
        return blocks * self.config.summary + max(0, rest - self._before)

    @property
    def _before(self) -> int:
        return self.config.stride - self.config.summary

    def kept(self, capacity: int) -> int:
        """Return the slots of the own block, and of all summaries unless the factor is 1."""
        far = 0 if self.config.factor == 1 else self.summaries(capacity)
        return min(capacity, self.ring + far)

    @property
    def ring(self) -> int:
        """Slots of the newest tokens; factor 2 needs only those of one extend."""
        return SLACK if self.config.factor == 2 else self.config.stride - 1 + SLACK

    def pairs(self, length: int) -> int:
        """Count the pairs within the own block and with summaries outside of it."""
        stride, summary = self.config.stride, self.config.summary
        pairs = 0
        for start in range(0, length, stride):
            size = min(stride, length - start)
            inside = self.summaries(size)
            block = size * (size + 1) // 2 if self.causal else size * size
            others = start // stride * summary
            if not self.causal:
                others = self.summaries(length) - inside
            if self.config.factor == 2:
                plain = size - inside
                block = plain + (inside * (inside + 1) // 2 if self.causal else size * inside)
            pairs += block + (0 if self.config.factor == 1 else size * others)
        return pairs

    def complete(self, length: int) -> bool:
        """Return whether one block holds all tokens, or every token is a summary token."""
        if self.config.factor != 1 and self.config.summary == self.config.stride:
            return True
        return length <= (1 if self.config.factor == 2 else self.config.stride)

    def tiles(self, length: int, device: torch.device) -> list[Tile]:
        """Return tiles for blocks and for the summaries of other blocks."""
        stride, factor = self.config.stride, self.config.factor
        if factor == 1:
            return block_tiles(length, stride, causal=self.causal, device=device)
        if self.causal:
            sees = self.sees if factor == 2 else None
            own = block_tiles(length, stride, sees=sees, causal=factor is None, device=device)
            return own + self._earlier(length, device)

        def sees_besides(i: Tensor, j: Tensor) -> Tensor:
            return self.sees(i, j) & ~self.summarises(j)

        own = block_tiles(length, stride, sees=sees_besides, device=device)
        return own + self._everywhere(length)

    def _summary_range(self, first: int, blocks: int) -> StridedRange:
        """Return the summaries of `blocks` blocks from block `first` on."""
        start = first * self.config.stride + self._before
        return StridedRange(start, runs=blocks, jump=self.config.stride, length=self.config.summary)

    def _everywhere(self, length: int) -> list[Tile]:
        """Return tiles of all queries with all summaries, a partial last block included."""
        stride = self.config.stride
        blocks, rest = divmod(length, stride)
        keys = [self._summary_range(0, blocks)] if blocks else []
        if rest > self._before:
            keys.append(StridedRange(blocks * stride + self._before, length=rest - self._before))
        queries = [
            StridedRange(start, length=min(GROUP, length - start))
            for start in range(0, length, GROUP)
        ]
        return [Tile(q, k, more=True) for k in keys for q in queries]

    def _earlier(self, length: int, device: torch.device) -> list[Tile]:
        """Return tiles of groups of blocks with summaries of earlier groups and of their own."""
        stride = self.config.stride
        group = max(1, GROUP // stride)
        tiles = []
        for first in range(group, -(-length // stride), group):
            start = first * stride
            queries = StridedRange(start, length=min(group * stride, length - start))
            tiles.append(Tile(queries, self._summary_range(0, first), more=True))
        full, rest = divmod(length, group * stride)
        if full and group > 1:
            queries = StridedRange(stride, full, group * stride, length=(group - 1) * stride)
            keys = self._summary_range(0, group - 1)._replace(sets=full, step=group * stride)
            tiles.append(self._steps(queries, keys, device))
        if rest > stride:
            first = full * group
            queries = StridedRange((first + 1) * stride, length=rest - stride)
            keys = self._summary_range(first, -(-rest // stride) - 1)
            tiles.append(self._steps(queries, keys, device))
        return tiles

    def _steps(self, queries: StridedRange, keys: StridedRange, device: torch.device) -> Tile:
        i, j = (part.cut(0, 1).positions(device)[0] for part in (queries, keys))
        stride = self.config.stride
        keep = j[None, :] // stride < i[:, None] // stride
        return Tile(queries, keys, keep, more=True)

    def new_cache(self, spec: CacheSpec) -> Cache:
        """Return a cache of the own block and all summaries, where that is less than everything."""
        if (
            self.halves is None
            and self.config.factor != 1
            and spec.widen(self.slots(spec.capacity)) < spec.capacity
        ):
            return SummaryCache(spec, self)
        return super().new_cache(spec)

    def extend_one(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Attend to the own block and to the summaries before it."""
        if not isinstance(cache, SummaryCache):
            return super().extend_one(q_BHTK, k_BGTK, v_BGTK, cache, step)
        if step.fresh:
            cache.fill(k_BGTK, v_BGTK, step)
            return self(q_BHTK, k_BGTK, v_BGTK)
        slots = step.plan(
            (self.key, "summaries", cache.ring), lambda: self._slots(step, len(q_BHTK), cache.ring)
        )
        # Other tokens are written to their ring slot twice.
        k_twice, v_twice = (torch.cat([x, x], dim=2) for x in (k_BGTK, v_BGTK))
        k_BGCK, v_BGCK = cache.write(k_twice, v_twice, slots)
        return attend(q_BHTK, k_BGCK, v_BGCK, keep=slots.keep)

    def _slots(self, step: Step, rows: int, ring: int) -> SlotPlan:
        """Return the slots of new tokens in a `SummaryCache`, and which slots they see."""
        stride, summary = self.config.stride, self.config.summary
        at_BT = step.positions.index_BT
        ring_BT = at_BT % ring
        summary_BT = ring + at_BT // stride * summary + at_BT % stride - self._before
        write = torch.cat([ring_BT, torch.where(self.summarises(at_BT), summary_BT, ring_BT)], 1)
        cell_C = self._cells(step.positions.end, step.device)
        i, ring_j, cell_j = (
            at_BT[:, :, None],
            step.tokens_in_slots(ring)[:, None],
            cell_C[None, None],
        )
        if self.config.factor == 2:
            near, far = ring_j == i, cell_j < i
        else:
            near, far = self.near(i, ring_j), cell_j // stride < i // stride
        near = near & (ring_j >= 0) & (ring_j <= i)
        keep = torch.cat([near, far], dim=2)[:, None]
        return SlotPlan(write.expand(rows, -1), ring + len(cell_C), keep)

    def _cells(self, length: int, device: torch.device) -> Tensor:
        """Return the positions of the summary tokens among the first `length`."""
        cell_C = torch.arange(self.summaries(length), device=device)
        summary = self.config.summary
        return cell_C // summary * self.config.stride + self._before + cell_C % summary


class SummaryCache(LayerCache):
    """A ring of the newest tokens, followed by a slot for every summary token.

    A summary slot belongs to one position, so after a rollback it is rewritten before any query
    sees it.
    """

    def __init__(self, spec: CacheSpec, attention: Attention) -> None:
        super().__init__(spec, spec.widen(attention.slots(spec.capacity)))
        self.attention = attention
        self.ring = attention.ring + spec.slack - SLACK
        """Slots of the newest tokens."""

    def fill(self, k_BGTK: Tensor, v_BGTK: Tensor, step: Step) -> None:
        """Store a first pass: the newest tokens of each row and the summaries."""
        batch, heads, tokens, width = k_BGTK.shape
        cell_C = self.attention._cells(tokens, step.device)
        newest_BC = step.newest(self.ring).clamp(min=0)
        index_BC = torch.cat([newest_BC, cell_C.expand(batch, -1)], dim=1)
        index = index_BC[:, None, :, None].expand(-1, heads, -1, width)
        self.k_BGCK[:, :, : index.shape[2]] = k_BGTK.gather(2, index)
        self.v_BGCK[:, :, : index.shape[2]] = v_BGTK.gather(2, index)

    def select(self, row_N: Tensor, used: int) -> None:
        """Reorder, drop or copy rows."""
        super().select(row_N, self.ring + self.attention.summaries(used))
