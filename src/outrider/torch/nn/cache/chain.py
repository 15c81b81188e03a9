"""A cache with linked lists of the tokens of each hash bucket.

Every token stores, for each round of hashing, the previous token of its bucket. Following the chain
yields the last m tokens of a bucket in m steps, independent of the number of cached tokens.

Rollback needs no repair: the newest token of a bucket is recorded one extend later, when it is
known which tokens of that extend were kept.
"""

from typing import Self

import torch
from torch import Tensor

from outrider.torch.nn.cache import NO_POSITION, CacheSpec, LayerCache, SlotPlan, join_rows


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
