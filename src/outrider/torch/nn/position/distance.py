"""Learned vectors for distances (Shaw et al., 2018, arXiv:1803.02155).

    s(i, j) = q_i . (k_j + a[clip(j - i, -D, D)]) / sqrt(K)

Each layer has a vector of a head's width for every distance up to D, shared by all heads and by all
distances from D on. A decoder only looks back, and has D + 1 vectors. The paper also adds vectors
to values but finds no further gain, so they are left out.
"""

import torch
from torch import Tensor, nn

from outrider.torch.nn.position import Positions


class DistanceTable(nn.Module):
    """The vectors of one layer."""

    def __init__(self, head_width: int, *, farthest: int, two_sided: bool) -> None:
        super().__init__()
        self.farthest, self.two_sided = farthest, two_sided
        self.table = nn.Embedding(farthest + 1 + farthest * two_sided, head_width)

    def whole(self, q_BHTK: Tensor) -> Tensor:
        """Return the bias of a whole pass, [B, H, T, T]."""
        index_1T = Positions.upto(q_BHTK.shape[2], q_BHTK.device).index_BT
        return self._bias(q_BHTK, index_1T, index_1T[0])

    def after(self, q_BHTK: Tensor, positions: Positions, read: int) -> Tensor:
        """Return the bias of tokens towards the first `read` of their rows, [B, H, T, S]."""
        return self._bias(q_BHTK, positions.index_BT, torch.arange(read, device=q_BHTK.device))

    def _bias(self, q_BHTK: Tensor, i_BT: Tensor, j_S: Tensor) -> Tensor:
        back_BTS = (i_BT[..., None] - j_S).clamp(
            min=-self.farthest if self.two_sided else 0, max=self.farthest
        )
        row_BTS = back_BTS + self.farthest * self.two_sided
        score_BHTN = q_BHTK @ self.table.weight.to(q_BHTK.dtype).T / q_BHTK.shape[-1] ** 0.5
        shape = (*score_BHTN.shape[:3], len(j_S))
        return score_BHTN.gather(3, row_BTS[:, None].expand(shape))
