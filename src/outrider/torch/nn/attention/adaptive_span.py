"""Adaptive attention span (Sukhbaatar et al., 2019, arXiv:1905.07799): learned span per head.

    w_ij = m(i - j) exp(s_ij) / sum_{r <= i} m(i - r) exp(s_ir)
    m(x) = clamp((R + z - x) / R, 0, 1)
    static     z of a head is a parameter in [0, S]
    dynamic    z_t = S sigmoid(u . q_t + b)
    loss       + penalty * mean z of the heads, for every layer

Time O(T (z + R) K) and memory O(T K): heads are grouped by their current reach, and each group is
computed, and cached when decoding, only that far. The paper's dynamic span reads the layer's input
x_t; here it reads the head's query, a linear map of x_t.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from outrider.errors import ConfigError
from outrider.torch.nn.attention.base import AttentionBase, AttentionConfig, Cost, HeadShape
from outrider.torch.nn.attention.head_parts import PartsCache
from outrider.torch.nn.cache import SLACK, Cache, CacheSpec, LayerCache, Step
from outrider.torch.nn.kernel.soft_window import (
    HeadGroup,
    attend_softly,
    cut_blocks,
    log_fade,
    run_groups,
)

DENSE_UP_TO = 256
"""Longest sequence that takes the dense path."""
GRAIN = 32
"""Heads whose reaches round up to the same multiple of this share a ring when decoding."""
TOGETHER = 128
"""Heads with reaches up to this are always computed together."""
BLOCKS = (64, 128, 512)
"""Queries of a block: minimum, maximum for a long reach, and maximum for small blocks."""
LITTLE = 1 << 15
"""Pairs of a block below which kernel calls cost more than the computation."""
SHORT = -4.0
"""Initial b of a dynamic span: almost the shortest span."""


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """Options of `kind: adaptive_span`."""

    max_span: int = 1024
    """S: upper limit of a span, in tokens."""
    ramp: int = 32
    """R: tokens over which the edge of a span fades."""
    dynamic: bool = False
    """Compute a span for every token from its query, instead of one per head."""
    penalty: float = 2e-6
    """Loss weight of the mean span of each layer's heads, per token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("max_span", "ramp"):
            if getattr(self, key) < 1:
                raise ConfigError(f"attention.{key}", f"got {getattr(self, key)}, expected >= 1")
        if not 0 <= self.penalty < math.inf:
            raise ConfigError("attention.penalty", f"got {self.penalty}, expected 0 or more")


class Attention(AttentionBase):
    """A window of learned length for each head."""

    config: Config
    two_sided_ok = False

    def __init__(
        self, config: Config, *, causal: bool, dropout: float = 0.0, shape: HeadShape
    ) -> None:
        super().__init__(config, causal=causal, dropout=dropout, shape=shape)
        # "bias" in the name exempts them from weight decay: the penalty shrinks them.
        first = SHORT if config.dynamic else 0.0
        self.span_bias_H = nn.Parameter(torch.full((shape.heads,), first))
        self.span_query_HK = (
            nn.Parameter(torch.zeros(shape.heads, shape.width)) if config.dynamic else None
        )
        self._mean_span: Tensor | None = None

    def spans(self, q_BHTK: Tensor | None = None) -> Tensor:
        """Return z: [1, H, 1, 1], or of every query [B, H, T, 1] where spans are dynamic.

        Without queries, dynamic spans are at their limit.
        """
        longest = self.config.max_span
        bias_1H11 = self.span_bias_H[None, :, None, None]
        bias_1H11 = bias_1H11.to(torch.promote_types(bias_1H11.dtype, torch.float32))
        if self.span_query_HK is None:
            return longest * _fold(bias_1H11)
        if q_BHTK is None:
            return torch.full_like(bias_1H11, longest)
        query_HK1 = self.span_query_HK[..., None].to(q_BHTK.dtype)
        read_BHT1 = q_BHTK[..., : self.shape.width] @ query_HK1
        return longest * (read_BHT1 + bias_1H11).sigmoid()

    @property
    def reaches(self) -> list[int]:
        """Tokens that each head sees at most now, the query's own included."""
        if torch.compiler.is_compiling():  # a graph cannot depend on weight values
            return [self.config.max_span + self.config.ramp] * self.shape.heads
        return _reaches(self.spans(), self.config.ramp)

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is within the reach of any head."""
        return (j <= i) & (i - j < max(self.reaches))

    def heads_see(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is within the reach of each head; dynamic spans are at their limit."""
        return torch.stack([(j <= i) & (i - j < reach) for reach in self.reaches])

    def slots(self, capacity: int) -> int:
        """Return the mean over key-value heads of reach and the slack of one extend."""
        parts = self._ring_groups(capacity)
        return math.ceil(sum(len(p.kv_heads) * p.slots for p in parts) / self.shape.kv_heads)

    def cost(self, length: int) -> Cost:
        """Return the band of each head, averaged over the heads."""
        reaches = [min(reach, length) for reach in self.reaches]
        pairs = sum(length * reach - reach * (reach - 1) // 2 for reach in reaches)
        return Cost(pairs=round(pairs / len(reaches)), slots=self.slots(length))

    def penalty(self) -> Tensor | None:
        """Return the weighted mean span, of the heads or of the last pass's queries."""
        if not self.config.penalty:
            return None
        if not self.config.dynamic:
            return self.config.penalty * self.spans().mean()
        mean, self._mean_span = self._mean_span, None
        return None if mean is None else self.config.penalty * mean

    def check_reversible(self, key: str) -> None:
        """Refuse dynamic spans."""
        if self.config.dynamic:
            message = "dynamic spans add a loss per pass, which reversible layers do not keep"
            raise ConfigError(f"{key}.dynamic", f"{message}; use dynamic: false")

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Attend group by group, each up to its reach; short sequences in one dense pass."""
        if q_BHTK.shape[2] <= DENSE_UP_TO:
            return self.reference(q_BHTK, k_BGTK, v_BGTK)
        span_BHT1 = self._spans_of_pass(q_BHTK)
        share = q_BHTK.shape[1] // k_BGTK.shape[1]
        rows, _, length, _ = q_BHTK.shape
        parts = [
            self._head_group(span_BHT1, heads, [head // share for head in heads], rows, length)
            for heads in _group(map(_doubling, self._pass_reaches(span_BHT1)))
        ]
        ramp, dropout = self.config.ramp, self.active_dropout
        return run_groups(q_BHTK, k_BGTK, v_BGTK, span_BHT1, parts, ramp=ramp, dropout=dropout)

    def reference(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """Attend under the soft mask as a dense T x T bias."""
        at_T = torch.arange(q_BHTK.shape[2], device=q_BHTK.device)
        bias = log_fade(self._spans_of_pass(q_BHTK), at_T[:, None] - at_T, self.config.ramp)
        return attend_softly(q_BHTK, k_BGTK, v_BGTK, bias, dropout=self.active_dropout)

    def new_cache(self, spec: CacheSpec) -> Cache:
        """Return a ring for each group of key-value heads, as long as the group's current reach."""
        return SpanCache(spec, self._ring_groups(spec.capacity))

    def extend(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Append tokens to the ring of every group and attend from them."""
        assert isinstance(cache, SpanCache)
        if step.fresh:
            for part, ring in cache.rings:
                ring.fill(k_BGTK[:, part.kv_heads], v_BGTK[:, part.kv_heads], step)
            return self(q_BHTK, k_BGTK, v_BGTK)
        out_BHTK, span = torch.empty_like(q_BHTK), self.spans(q_BHTK)
        for part, ring in cache.rings:
            slots = step.slots(_Window(part.reach), ring.size)
            k, v = ring.write(k_BGTK[:, part.kv_heads], v_BGTK[:, part.kv_heads], slots)
            distance = _distance(step, ring.size)[:, None, :, : slots.read]
            bias = log_fade(span[:, part.heads], distance, self.config.ramp)
            out_BHTK[:, part.heads] = attend_softly(q_BHTK[:, part.heads], k, v, bias)
        return out_BHTK

    def _spans_of_pass(self, q_BHTK: Tensor) -> Tensor:
        """Return the spans of one pass, and store their mean for the penalty."""
        span_BHT1 = self.spans(q_BHTK)
        if self.config.dynamic and self.training and torch.is_grad_enabled():
            self._mean_span = span_BHT1.mean()
        return span_BHT1

    def _pass_reaches(self, span_BHT1: Tensor) -> list[int]:
        if torch.compiler.is_compiling():
            return self.reaches
        return _reaches(span_BHT1, self.config.ramp)

    def _head_group(
        self, span_BHT1: Tensor, heads: list[int], kv_heads: list[int], rows: int, length: int
    ) -> HeadGroup:
        """Cut the work of heads with similar reaches into blocks."""
        span_BHT1 = span_BHT1[:, heads]
        reach = max(self._pass_reaches(span_BHT1))
        size = _block_size(rows * len(heads), reach)
        starts = range(0, length, size)
        reaches = [reach] * len(starts)
        if self.config.dynamic:  # each block reaches as far as its own queries
            reaches = [
                max(self._pass_reaches(span_BHT1[:, :, start : start + size])) for start in starts
            ]
        return HeadGroup(heads, kv_heads, cut_blocks(length, size, reaches), size)

    def _ring_groups(self, capacity: int) -> "list[_RingGroup]":
        share = self.shape.heads // self.shape.kv_heads
        reach_H = self.reaches
        reach_G = [max(reach_H[g * share : (g + 1) * share]) for g in range(self.shape.kv_heads)]
        parts = []
        for kv_heads in _group(-(-reach // GRAIN) for reach in reach_G):
            reach = max(reach_G[g] for g in kv_heads)
            heads = [g * share + n for g in kv_heads for n in range(share)]
            parts.append(_RingGroup(heads, kv_heads, reach, min(capacity, reach - 1 + SLACK)))
        return parts


class SpanCache(PartsCache):
    """A ring for each group of heads; its length is fixed when the cache is made."""

    def __init__(self, spec: CacheSpec, groups: "Sequence[_RingGroup]") -> None:
        rings = [
            LayerCache(spec._replace(heads=len(group.kv_heads)), spec.widen(group.slots))
            for group in groups
        ]
        super().__init__(rings)
        self.rings = list(zip(groups, rings, strict=True))


class _RingGroup(NamedTuple):
    heads: list[int]
    kv_heads: list[int]
    reach: int
    slots: int


class _Window(NamedTuple):
    """The hard window around a soft one, as a pattern for slot plans."""

    reach: int

    @property
    def key(self) -> object:
        return _Window, self.reach

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        return i - j < self.reach


def _fold(x: Tensor) -> Tensor:
    """Map to [0, 1] by reflection at both ends.

    A clamp has no gradient outside, so a span that an update moves out of range would never return.
    """
    x = torch.where(x < 0, -x, x)
    return torch.where(x > 1, 2 - x, x).clamp(min=0)


def _reaches(span_BHT1: Tensor, ramp: int) -> list[int]:
    longest_H = span_BHT1.detach().amax((0, 2, 3))
    return [math.ceil(reach) for reach in (ramp + longest_H).tolist()]


def _group(keys: Iterable[int]) -> list[list[int]]:
    """Group the indices of equal keys."""
    groups: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _doubling(reach: int) -> int:
    """Return the exponent of the power of two that a reach rounds up to."""
    return (max(reach, TOGETHER) - 1).bit_length()


def _block_size(rows: int, reach: int) -> int:
    """Return the queries of a block: large blocks compute unused pairs, small ones cost calls."""
    least, most, largest = BLOCKS
    size = min(max(reach, least), most)
    while size < largest and rows * size * (size + reach) < LITTLE:
        size = min(2 * size, largest)
    return size


def _distance(step: Step, size: int) -> Tensor:
    """Return the distance from each query back to each slot's token; -1 for empty slots.

    Shape [B or 1, T, C].
    """
    at_BT = step.positions.index_BT
    newest_B1 = at_BT[:, -1:]
    held_BC = newest_B1 - (newest_B1 - torch.arange(size, device=at_BT.device)) % size
    distance_BTC = at_BT[:, :, None] - held_BC[:, None]
    return distance_BTC.masked_fill(held_BC[:, None] < 0, -1)
