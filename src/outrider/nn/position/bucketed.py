"""Bucketed relative positions (T5, Raffel et al., 2019, arXiv:1910.10683).

    s(i, j) = q_i . k_j / sqrt(K) + B[bucket(j - i), h]

B has a number for every bucket and head, and all layers of a stack share it. N buckets know the
distance d = |j - i| exactly up to n / 2, and beyond in steps that grow with it, up to D:

    bucket = d                                                           d < n / 2
             min(n - 1, n/2 + floor(log(d / (n/2)) / log(D / (n/2)) n/2))      else

An encoder has n = N / 2 of them for each side, those for j > i in the upper half; a decoder, which
only looks back, has n = N.
"""

import math

import torch
from torch import Tensor, nn

from outrider.nn.position import Positions

__all__ = ["BucketedBias", "bucket"]


def bucket(offset: Tensor, *, buckets: int, distance: int, two_sided: bool) -> Tensor:
    """Return the bucket of every offset j - i."""
    start = torch.zeros_like(offset)
    if two_sided:
        buckets //= 2
        start = (offset > 0) * buckets
        d = offset.abs()
    else:
        d = (-offset).clamp(min=0)
    exact = buckets // 2
    # In float32 as the models were trained: a rounding decides the bucket at a step's edge.
    share = torch.log(d.float() / exact) / math.log(distance / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
    return start + torch.where(d < exact, d, far)


class BucketedBias(nn.Module):
    """One table, for all layers of a stack."""

    def __init__(self, heads: int, *, buckets: int, distance: int, two_sided: bool) -> None:
        super().__init__()
        self.buckets, self.distance, self.two_sided = buckets, distance, two_sided
        self.table = nn.Embedding(buckets, heads)

    def whole(self, length: int, device: torch.device) -> Tensor:
        """Return the bias of a whole pass, [1, H, T, T]."""
        index_1T = Positions.upto(length, device).index_BT
        return self._bias(index_1T, index_1T[0])

    def after(self, positions: Positions, read: int) -> Tensor:
        """Return the bias of tokens to the first `read` of their rows, [B or 1, H, T, S]."""
        index_BT = positions.index_BT
        return self._bias(index_BT, torch.arange(read, device=index_BT.device))

    def _bias(self, i_BT: Tensor, j_S: Tensor) -> Tensor:
        number = bucket(
            j_S - i_BT[..., None],
            buckets=self.buckets,
            distance=self.distance,
            two_sided=self.two_sided,
        )
        bias_BHTS: Tensor = self.table(number).movedim(-1, 1)
        return bias_BHTS
