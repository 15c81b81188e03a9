"""Attention within hash buckets (Reformer: Kitaev et al., 2020, arXiv:2001.04451).

    k_j = q_j / |q_j|                      queries and keys are shared
    causal    S_i = union over rounds of {j <= i : j is one of the last m of i's bucket}
    chunked   S_i = union over rounds of {j in i's bucket : j in i's chunk of m or the one before},
              chunks cut from the tokens sorted by (bucket, position)

A token sees itself only if it sees nothing else. A key found by several rounds counts once. Time
O(T log T + rounds T (m + N) K) for N buckets, memory O(T (K + rounds)). Rotations are drawn like
weights, differ by layer and head, and are saved with the model; the choice of keys has no gradient.

`chunked` is the paper's form. There, later tokens shift the ends of chunks and so change which past
keys a query sees; only `causal` works in a decoder. Decoding keeps every token and reads at most
rounds * m of them.

The cache has linked lists of the tokens of each hash bucket. Every token stores, for each round of
hashing, the previous token of its bucket. Following the chain yields the last m tokens of a bucket
in m steps, independent of the number of cached tokens. Rollback needs no repair: the newest token
of a bucket is recorded one extend later, when it is known which tokens of that extend were kept.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.errors import ConfigError
from outrider.torch.nn.attention.base import AttentionBase, AttentionConfig, Cost, HeadShape
from outrider.torch.nn.cache import (
    NO_POSITION,
    SLACK,
    Cache,
    CacheSpec,
    LayerCache,
    SlotPlan,
    Step,
    join_rows,
)
from outrider.torch.nn.kernel.bucketed import attend_in_buckets
from outrider.torch.nn.kernel.dense import attend, repeat_heads
from outrider.torch.nn.kernel.hashing import (
    Layout,
    causal_layout,
    chunked_layout,
    draw_rotations,
    hash_buckets,
)


class ChainCache:
    """Keys and values of all tokens, and the chains of their buckets."""

    wraps = False

    def __init__(self, spec: CacheSpec, *, rounds: int, buckets: int) -> None:
        self.kv = LayerCache(spec, spec.capacity)
        shape = (spec.rows, spec.heads, rounds)
        # Tokens are counted from 1; 0 marks the end of a chain.
        small = spec.capacity <= torch.iinfo(torch.int16).max
        dtype = torch.int16 if small else torch.int32
        self.before_BHRC = torch.zeros(*shape, spec.capacity + 1, dtype=dtype, device=spec.device)
        self.newest_BHRN = torch.zeros(*shape, buckets, dtype=dtype, device=spec.device)
        self._bucket_BHRT = torch.zeros(*shape, 0, dtype=torch.int64, device=spec.device)
        self._position_BT = torch.zeros(spec.rows, 0, dtype=torch.int64, device=spec.device)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        chains = (self.before_BHRC, self.newest_BHRN, self._bucket_BHRT, self._position_BT)
        return self.kv.nbytes + sum(chain.nbytes for chain in chains)

    def append(
        self, k_BHTK: Tensor, v_BHTK: Tensor, bucket_BHRT: Tensor, position_BT: Tensor, end: int
    ) -> tuple[Tensor, Tensor]:
        """Store and link tokens; return all keys and values, [B, H, end, K] each."""
        self._settle(position_BT[:, :1])
        before_BHRT = _link(bucket_BHRT, position_BT, self.newest_BHRN)
        slot_BHRT = (position_BT + 1)[:, None, None].expand_as(before_BHRT)
        self.before_BHRC.scatter_(-1, slot_BHRT, before_BHRT)
        self._bucket_BHRT, self._position_BT = bucket_BHRT, position_BT
        return self.kv.write(k_BHTK, v_BHTK, SlotPlan(position_BT, end, None))

    def tokens_before(self, position_BT: Tensor, steps: int) -> Tensor:
        """Return the previous tokens of each token's bucket, newest first: [B, H, R, T, steps].

        Counted from 1; 0 at the end of a chain.
        """
        batch, heads, rounds, _ = self.before_BHRC.shape
        at_BHRT = (position_BT + 1)[:, None, None].expand(batch, heads, rounds, -1)
        chain = []
        for _ in range(steps):
            at_BHRT = self.before_BHRC.gather(-1, at_BHRT).long()
            chain.append(at_BHRT)
        return torch.stack(chain, dim=-1)

    def select(self, row_N: Tensor, used: int) -> None:
        """Reorder, drop or copy rows; no row has more than `used` tokens."""
        self.kv.select(row_N, used)
        self.before_BHRC = self.before_BHRC.index_select(0, row_N)
        self.newest_BHRN = self.newest_BHRN.index_select(0, row_N)
        self._bucket_BHRT = self._bucket_BHRT.index_select(0, row_N)
        self._position_BT = self._position_BT.index_select(0, row_N)

    def join(self, other: Self, place_N: Tensor, rows: int) -> None:
        """Write the rows of another cache to these indices."""
        self.kv.join(other.kv, place_N, rows)
        self.before_BHRC = join_rows(self.before_BHRC, other.before_BHRC, place_N, rows)
        self.newest_BHRN = join_rows(self.newest_BHRN, other.newest_BHRN, place_N, rows)
        self._bucket_BHRT = join_rows(self._bucket_BHRT, other._bucket_BHRT, place_N, rows)
        position_BT = join_rows(self._position_BT, other._position_BT, place_N, rows, NO_POSITION)
        self._position_BT = position_BT

    def _settle(self, start_B1: Tensor) -> None:
        """Record the newest token of every bucket among the kept tokens of the last extend."""
        kept_BT = torch.where(self._position_BT < start_B1, self._position_BT + 1, 0)
        token_BHRT = kept_BT[:, None, None].expand_as(self._bucket_BHRT)
        token_BHRT = token_BHRT.to(self.newest_BHRN.dtype)
        self.newest_BHRN.scatter_reduce_(-1, self._bucket_BHRT, token_BHRT, "amax")


def _link(bucket_BHRT: Tensor, position_BT: Tensor, newest_BHRN: Tensor) -> Tensor:
    """Return the previous token of each new token's bucket, new or cached."""
    bucket_BHRT, order_BHRT = bucket_BHRT.sort(dim=-1, stable=True)
    before_BHRT = newest_BHRN.gather(-1, bucket_BHRT)
    token_BHRT = (position_BT + 1)[:, None, None].expand_as(order_BHRT).gather(-1, order_BHRT)
    token_BHRT = token_BHRT.to(before_BHRT.dtype)
    same = bucket_BHRT[..., 1:] == bucket_BHRT[..., :-1]
    before_BHRT[..., 1:] = torch.where(same, token_BHRT[..., :-1], before_BHRT[..., 1:])
    return torch.empty_like(before_BHRT).scatter_(-1, order_BHRT, before_BHRT)


FORMS = ("auto", "causal", "chunked")
LIMITS = {"rounds": (1, 64), "buckets": (2, 1 << 12), "chunk": (2, 1 << 16)}
DENSE_UP_TO = 1
"""One dense pass is used up to this many times the pairs of the blocks."""


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """Options of `kind: lsh`."""

    form: str = "auto"
    """causal, chunked, or auto: causal in decoders, chunked in encoders."""
    rounds: int = 4
    """Rounds of hashing; more rounds find more pairs."""
    buckets: int = 128
    """N: buckets of a round, an even number; T / chunk or twice that is a good choice."""
    chunk: int = 64
    """m: tokens of its bucket that a query sees per round; in the chunked form m to 2 m."""
    redraw: bool = False
    """Draw new rotations in every training pass, as in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in FORMS:
            raise ConfigError("attention.form", f"unknown {self.form!r}; expected one of {FORMS}")
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"attention.{name}", f"got {value}, expected {low} to {high}")
        if self.buckets % 2:
            raise ConfigError("attention.buckets", f"got {self.buckets}, expected an even number")


class Attention(AttentionBase):
    """Hashes queries and attends within buckets; keys are derived from the queries."""

    config: Config
    positional = False
    columns_ok = False
    rotation: Tensor

    def __init__(
        self, config: Config, *, causal: bool, dropout: float = 0.0, shape: HeadShape
    ) -> None:
        super().__init__(config, causal=causal, dropout=dropout, shape=shape)
        if causal and config.form == "chunked":
            raise ConfigError(
                "attention.form",
                "'chunked' makes the visible keys depend on later tokens; use form: causal",
            )
        self.chunked = config.form == "chunked" or (config.form == "auto" and not causal)
        rotation = draw_rotations(config.rounds, shape.heads, shape.width, config.buckets)
        self.register_buffer("rotation", rotation)

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the keys that positions allow; the content selects among them."""
        return (j == j) & (i == i) if self.chunked else j <= i

    def cost(self, length: int) -> Cost:
        """Return at most m keys (chunked: 2 m) per query and round."""
        all_pairs = length * length if self.chunked else length * (length + 1) // 2
        width = 2 * self.config.chunk if self.chunked else self.config.chunk
        return Cost(pairs=min(all_pairs, self.config.rounds * length * width), slots=length)

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Attend in sorted blocks if that is faster, else in one dense pass."""
        layout = self._layout(q_BHTK, keep_BT)
        pairs = self.config.rounds * layout.slots * layout.near
        if q_BHTK.shape[2] ** 2 <= DENSE_UP_TO * pairs:
            return self._dense(q_BHTK, v_BGTK, layout)
        return attend_in_buckets(q_BHTK, v_BGTK, layout, dropout=self.active_dropout)

    def reference(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """Attend under the pattern of the buckets as a dense mask."""
        return self._dense(q_BHTK, v_BGTK, self._layout(q_BHTK, keep_BT))

    def new_cache(self, spec: CacheSpec) -> Cache:
        """Return a cache of all tokens with the chains of their buckets."""
        spec = spec._replace(heads=self.shape.heads)
        return ChainCache(spec, rounds=self.config.rounds, buckets=self.config.buckets)

    def extend(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Append tokens and attend from each to the chains of its buckets."""
        assert isinstance(cache, ChainCache)
        bucket_BHRT = self._hash(q_BHTK).movedim(0, 2)
        position_BT = step.positions.index_BT.expand(len(q_BHTK), -1)
        k_BHCK, v_BHCK = cache.append(
            *self._shared(q_BHTK, v_BGTK), bucket_BHRT, position_BT, step.positions.end
        )
        if step.fresh:
            return self(q_BHTK, k_BGTK, v_BGTK)
        steps = max(1, min(self.config.chunk, step.positions.end) - 1)
        outputs = []
        for start in range(0, step.tokens, SLACK):  # bounds the memory of a gather
            some = slice(start, start + SLACK)
            chain_BHRTS = cache.tokens_before(position_BT[:, some], steps)
            outputs.append(
                _attend_chains(
                    q_BHTK[:, :, some], k_BHCK, v_BHCK, chain_BHRTS, position_BT[:, some]
                )
            )
        return torch.cat(outputs, dim=2)

    def _shared(self, q_BHTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys derived from queries, and values repeated for grouped heads."""
        return F.normalize(q_BHTK, dim=-1), repeat_heads(v_BGTK, q_BHTK.shape[1])

    def _dense(self, q_BHTK: Tensor, v_BGTK: Tensor, layout: Layout) -> Tensor:
        k_BHTK, v_BHTK = self._shared(q_BHTK, v_BGTK)
        apart = (layout.apart(x[..., :, None], x[..., None, :]) for x in layout.code_RBHT)
        keep_BHTT = reduce(torch.minimum, apart) <= layout.half
        itself_TT = torch.eye(q_BHTK.shape[2], dtype=torch.bool, device=q_BHTK.device)
        keep_BHTT &= ~itself_TT
        keep_BHTT |= itself_TT & ~keep_BHTT.any(-1, keepdim=True)
        return attend(q_BHTK, k_BHTK, v_BHTK, keep=keep_BHTT, dropout=self.active_dropout)

    def _hash(self, q_BHTK: Tensor) -> Tensor:
        rotation = self.rotation
        if self.training and self.config.redraw:
            rotation = torch.randn_like(rotation)
        return hash_buckets(q_BHTK, rotation)

    def _layout(self, q_BHTK: Tensor, keep_BT: Tensor | None) -> Layout:
        """Sort tokens; padding gets its own last bucket."""
        bucket_RBHT, buckets = self._hash(q_BHTK), self.config.buckets
        if keep_BT is not None:
            bucket_RBHT = bucket_RBHT.masked_fill(~keep_BT[:, None], buckets)
            buckets += 1
        if self.chunked:
            return chunked_layout(bucket_RBHT, buckets, self.config.chunk)
        return causal_layout(bucket_RBHT, buckets, self.config.chunk)


def _attend_chains(
    q_BHTK: Tensor, k_BHCK: Tensor, v_BHCK: Tensor, chain_BHRTS: Tensor, position_BT: Tensor
) -> Tensor:
    """Attend from each query to the distinct tokens of its chains, or else to itself."""
    batch, heads, tokens, width = q_BHTK.shape
    token_BHTW = chain_BHRTS.movedim(2, 3).flatten(3).sort(dim=-1).values
    keep_BHTW = token_BHTW > 0
    keep_BHTW[..., 1:] &= token_BHTW[..., 1:] != token_BHTW[..., :-1]
    itself_BHT1 = position_BT[:, None, :, None].expand(-1, heads, -1, -1)
    at_BHTW = torch.cat([(token_BHTW - 1).clamp(min=0), itself_BHT1], dim=-1)
    keep_BHTW = torch.cat([keep_BHTW, ~keep_BHTW.any(-1, keepdim=True)], dim=-1)
    row_B = torch.arange(batch, device=q_BHTK.device)[:, None, None, None]
    head_H = torch.arange(heads, device=q_BHTK.device)[:, None, None]
    out = attend(
        q_BHTK.reshape(-1, 1, 1, width),
        k_BHCK[row_B, head_H, at_BHTW].view(-1, 1, at_BHTW.shape[-1], width),
        v_BHCK[row_B, head_H, at_BHTW].view(-1, 1, at_BHTW.shape[-1], width),
        keep=keep_BHTW.reshape(-1, 1, 1, at_BHTW.shape[-1]),
    )
    return out.view(batch, heads, tokens, width)
