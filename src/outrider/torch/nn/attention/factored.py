"""Two-factor patterns (Sparse Transformers, Child et al., 2019, arXiv:1904.10509).

Two sparse sets A1 and A2 together reach every token in two hops. A layer uses them in one of three
ways:

    merge        S_i = A1_i + A2_i, the union, in every head
    interleave   A1 in one layer, A2 in the next: this layer has `factor` 1 or 2
    per_head     A1 in the first half of the heads, A2 in the second
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.nn.attention.base import AttentionConfig, Cost, HeadShape
from outrider.torch.nn.attention.head_parts import HeadParts
from outrider.torch.nn.attention.tiled import TiledAttention
from outrider.torch.nn.cache import Cache, CacheSpec, Step

USES = ("merge", "interleave", "per_head")


@dataclass(frozen=True, kw_only=True)
class FactorConfig(AttentionConfig):
    """Options of every two-factor pattern."""

    stride: int = 128
    """l; best near the square root of the length."""
    use: str = "merge"
    """Use of the two factors: merge, interleave or per_head."""
    factor: int | None = None
    """With `use: interleave`, the factor of this layer: 1 or 2."""

    @classmethod
    def for_layer(cls, options: dict[str, Any], layer: int) -> dict[str, Any]:
        """Alternate interleaved factors, starting with factor 1."""
        if _alternates(options):
            return {**options, "factor": layer % 2 + 1}
        return options

    @classmethod
    def check_shared(cls, options: dict[str, Any], key: str) -> None:
        """Refuse factors that alternate between layers."""
        if _alternates(options):
            message = "depth: shared has one layer, so factors cannot alternate; use merge"
            raise ConfigError(f"{key}.use", message)

    @classmethod
    def options_for(cls, length: int) -> dict[str, Any]:
        """Return the stride with which both factors see about the same number of keys."""
        return {"stride": max(1, round(math.sqrt(length)))}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride < 1:
            raise ConfigError("attention.stride", f"got {self.stride}, expected 1 or more")
        if self.use not in USES:
            raise ConfigError("attention.use", f"unknown {self.use!r}; expected one of {USES}")
        if self.use == "interleave" and self.factor not in (1, 2):
            raise ConfigError(
                "attention.factor",
                f"got {self.factor!r}, expected 1 or 2: `use: interleave` gives a layer one factor",
            )
        if self.use != "interleave" and self.factor is not None:
            raise ConfigError(
                "attention.factor", f"has no meaning with use: {self.use}; set use: interleave"
            )


def _alternates(options: dict[str, Any]) -> bool:
    return options.get("use") == "interleave" and options.get("factor") is None


class FactoredAttention(TiledAttention):
    """One factor, the union of both, or one factor in each half of the heads."""

    config: FactorConfig
    scores_ok = False

    def __init__(
        self, config: FactorConfig, *, causal: bool, dropout: float = 0.0, shape: HeadShape
    ) -> None:
        super().__init__(config, causal=causal, dropout=dropout, shape=shape)
        self.halves: HeadParts | None = None
        if config.use == "per_head":
            self.halves = HeadParts([self._half(factor) for factor in (1, 2)])

    def _half(self, factor: int) -> "FactoredAttention":
        heads, kv_heads, width = self.shape
        if kv_heads < 2:
            message = f"per_head needs two key-value heads or more, not {kv_heads}; use merge"
            raise ConfigError("attention.use", message)
        mine = kv_heads // 2 if factor == 1 else kv_heads - kv_heads // 2
        return type(self)(
            replace(self.config, use="interleave", factor=factor),
            causal=self.causal,
            dropout=self.dropout,
            shape=HeadShape(mine * heads // kv_heads, mine, width),
        )

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is in A1 of i, before or after i."""
        raise NotImplementedError

    def far(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is in A2 of i, before or after i."""
        raise NotImplementedError

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is in a factor of this layer and, if causal, not after i."""
        if self.config.factor == 1:
            seen = self.near(i, j)
        elif self.config.factor == 2:
            seen = self.far(i, j)
        else:
            seen = self.near(i, j) | self.far(i, j)
        return seen & (j <= i) if self.causal else seen

    def heads_see(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the pattern of every head; the halves may differ."""
        return super().heads_see(i, j) if self.halves is None else self.halves.heads_see(i, j)

    @property
    def heads_alike(self) -> bool:
        """Whether both halves of the heads have the same factor."""
        return self.halves is None

    def kept(self, capacity: int) -> int:
        """Return the cache slots that this layer's factors need for `capacity` tokens."""
        raise NotImplementedError

    def pairs(self, length: int) -> int:
        """Return the pairs that one head scores."""
        raise NotImplementedError

    def slots(self, capacity: int) -> int:
        """Return the slots of the factors; with halves, the mean over heads."""
        return self.kept(capacity) if self.halves is None else self.halves.slots(capacity)

    def cost(self, length: int) -> Cost:
        """Return the cost of the factors; with halves, the mean over heads."""
        if self.halves is not None:
            return self.halves.cost(length)
        return Cost(pairs=self.pairs(length), slots=self.slots(length))

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Attend by tiles or one dense pass, each half on its own."""
        if self.halves is None:
            return super().run(q_BHTK, k_BGTK, v_BGTK, keep_BT)
        return self.halves.each(
            q_BHTK, k_BGTK, v_BGTK, lambda half, q, k, v: half.run(q, k, v, keep_BT)
        )

    def new_cache(self, spec: CacheSpec) -> Cache:
        """Return one cache, or one per half."""
        return super().new_cache(spec) if self.halves is None else self.halves.new_cache(spec)

    def extend(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Append tokens to every row of the cache and attend from them."""
        if self.halves is None:
            return self.extend_one(q_BHTK, k_BGTK, v_BGTK, cache, step)
        return self.halves.extend(q_BHTK, k_BGTK, v_BGTK, cache, step)

    def extend_one(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Extend heads that share one pattern."""
        return super().extend(q_BHTK, k_BGTK, v_BGTK, cache, step)

    def reach(self, first: int, last: int, length: int) -> tuple[int, int]:
        """Return all keys, because far keys may be anywhere."""
        return 0, last if self.causal else length
