"""Bucketed relative positions (T5, Raffel et al., 2019, arXiv:1910.10683).

    s(i, j) = q_i . k_j / sqrt(K) + B[bucket(j - i), h]

B is a table over buckets and heads, shared by all layers of a stack. N buckets represent the
distance d = |j - i| exactly up to n / 2, and beyond in logarithmic steps up to D:

    bucket = d                                                           d < n / 2
             min(n - 1, n/2 + floor(log(d / (n/2)) / log(D / (n/2)) n/2))      else

An encoder has n = N / 2 buckets for each side, those for j > i in the upper half; a decoder, which
only looks back, has n = N.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from outrider.torch.nn.position import Positions


def bucket(offset: Tensor, edges_N: Tensor, *, two_sided: bool) -> Tensor:
    """Return the bucket of every offset j - i."""
    distance = offset.abs() if two_sided else (-offset).clamp(min=0)
    near = torch.bucketize(distance, edges_N, right=True)
    return near + (offset > 0) * (len(edges_N) + 1) if two_sided else near


class BucketedBias(nn.Module):
    """The table of one stack."""

    def __init__(self, heads: int, *, edges: Sequence[int], two_sided: bool) -> None:
        """Create the table; `edges` are the distances at which buckets begin, except the first."""
        super().__init__()
        self.edges, self.two_sided = list(edges), two_sided
        self.table = nn.Embedding((len(edges) + 1) * (2 if two_sided else 1), heads)

    def whole(self, q_BHTK: Tensor) -> Tensor:
        """Return the bias of a whole pass, [1, H, T, T]."""
        index_1T = Positions.upto(q_BHTK.shape[2], q_BHTK.device).index_BT
        return self._bias(index_1T, index_1T[0])

    def after(self, q_BHTK: Tensor, positions: Positions, read: int) -> Tensor:
        """Return the bias of tokens towards the first `read` of their rows, [B or 1, H, T, S]."""
        index_BT = positions.index_BT
        return self._bias(index_BT, torch.arange(read, device=index_BT.device))

    def _bias(self, i_BT: Tensor, j_S: Tensor) -> Tensor:
        edges_N = torch.tensor(self.edges, device=j_S.device)
        number = bucket(j_S - i_BT[..., None], edges_N, two_sided=self.two_sided)
        bias_BHTS: Tensor = self.table(number).movedim(-1, 1)
        return bias_BHTS
