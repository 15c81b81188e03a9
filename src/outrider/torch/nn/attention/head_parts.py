"""Heads of one layer with different attentions.

    y = [y^1 ; y^2 ; ...]        part p computes heads h_p .. h_(p+1) - 1

Each part has its own pattern, cache and cost, so heads with a short reach stay cheap next to heads
with a long one.
"""

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from outrider.torch.nn.attention.base import AttentionBase, Cost
from outrider.torch.nn.cache import Cache, CacheSpec, Step


class PartsCache:
    """The caches of the parts of one layer."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        self.caches = list(caches)

    @property
    def wraps(self) -> bool:
        """Whether some part overwrites old tokens."""
        return any(cache.wraps for cache in self.caches)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return sum(cache.nbytes for cache in self.caches)

    def select(self, row_N: Tensor, used: int) -> None:
        """Reorder, drop or copy rows."""
        for cache in self.caches:
            cache.select(row_N, used)

    def join(self, other: Self, place_N: Tensor, rows: int) -> None:
        """Write the rows of another cache to these indices."""
        for ours, theirs in zip(self.caches, other.caches, strict=True):
            ours.join(theirs, place_N, rows)


class HeadParts(nn.Module):
    """Attentions over consecutive groups of heads."""

    def __init__(self, parts: Sequence[AttentionBase]) -> None:
        super().__init__()
        self.parts: Sequence[AttentionBase] = nn.ModuleList(parts)  # type: ignore[assignment]
        self.heads = [part.shape.heads for part in parts]
        self.kv_heads = [part.shape.kv_heads for part in parts]

    def each(
        self,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        v_BGTK: Tensor,
        compute: Callable[[AttentionBase, Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Apply `compute` to every part and its heads."""
        shared = q_BHTK.shape[1] // k_BGTK.shape[1]
        kv_heads = [heads // shared for heads in self.heads]
        q_parts = torch.split(q_BHTK, self.heads, dim=1)
        k_parts, v_parts = (torch.split(x, kv_heads, dim=1) for x in (k_BGTK, v_BGTK))
        heads = zip(self.parts, q_parts, k_parts, v_parts, strict=True)
        return torch.cat([compute(*part) for part in heads], dim=1)

    def extend(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Append tokens to the cache of every part and attend from them."""
        assert isinstance(cache, PartsCache)
        caches = iter(cache.caches)
        return self.each(
            q_BHTK,
            k_BGTK,
            v_BGTK,
            lambda part, q, k, v: part.extend(q, k, v, next(caches), step),
        )

    def new_cache(self, spec: CacheSpec) -> PartsCache:
        """Return a cache for every part."""
        pairs = zip(self.parts, self.kv_heads, strict=True)
        return PartsCache([part.new_cache(spec._replace(heads=heads)) for part, heads in pairs])

    def heads_see(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the pattern of every head, [H, ...]."""
        seen = []
        for part, heads in zip(self.parts, self.heads, strict=True):
            pattern = part.heads_see(i, j)
            seen.append(pattern.expand(heads, *pattern.shape[1:]))
        return torch.cat(seen)

    def slots(self, capacity: int) -> int:
        """Return the slots, as the mean over key-value heads."""
        kept = [n * part.slots(capacity) for part, n in zip(self.parts, self.kv_heads, strict=True)]
        return -(-sum(kept) // sum(self.kv_heads))

    def cost(self, length: int) -> Cost:
        """Return the cost, as the mean over heads."""
        pairs = [
            n * part.cost(length).pairs for part, n in zip(self.parts, self.heads, strict=True)
        ]
        return Cost(pairs=-(-sum(pairs) // sum(self.heads)), slots=self.slots(length))

    def penalty(self) -> Tensor | None:
        """Return the sum of the penalties of the parts."""
        penalties = [penalty for part in self.parts if (penalty := part.penalty()) is not None]
        return torch.stack(penalties).sum() if penalties else None
