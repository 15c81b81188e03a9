"""Linear biases (ALiBi, Press et al., 2021, arXiv:2108.12409): a penalty that grows with distance.

    s(i, j) = q_i . k_j / sqrt(K) - m_h (i - j)        m_h = 2^(-8 h / H)    h = 1 ... H

As columns, with j = 256 j1 + j0 and both parts below 257 up to position 65,791:

    a_i = [256 m, m, -m i]        b_j = [j1, j0, 1]

bfloat16 represents j1 and j0 exactly. The softmax is invariant to the term -m i, equal for all keys
of a query, but without it scores grow with the position and lose precision. In bfloat16 that term
takes two columns: the rounded value and the rounding error.
"""

import torch
from torch import Tensor

from outrider.torch.nn.position import Columns, Positions

BASE = 256


class Alibi(Columns):
    """A slope per query head; for decoders, because it only looks back."""

    def __init__(self, heads: int, *, head_width: int) -> None:
        super().__init__(4, head_width=head_width)
        self.slopes = [2 ** (-8 * head / heads) for head in range(1, heads + 1)]

    def forward(
        self, q_BHTK: Tensor, k_BGTK: Tensor, positions: Positions
    ) -> tuple[Tensor, Tensor]:
        """Return slopes and positions."""
        wide = torch.promote_types(q_BHTK.dtype, torch.float32)
        step_H1 = torch.tensor(self.slopes, dtype=wide, device=q_BHTK.device)[:, None] * self.root
        # Rounded once, here: the slopes of 256 and 1 must stay in proportion.
        step_H1 = step_H1.to(q_BHTK.dtype)
        index_BT = positions.index_BT
        back_BHT = -step_H1.to(wide) * index_BT[:, None, :]
        high_BHT = back_BHT.to(q_BHTK.dtype)
        low_BHT = (back_BHT - high_BHT).to(q_BHTK.dtype)
        step_BHT = step_H1.expand_as(high_BHT)
        a = torch.stack([step_BHT * BASE, step_BHT, high_BHT, low_BHT], dim=-1)
        ones_BT = torch.ones_like(index_BT)
        b = torch.stack([index_BT // BASE, index_BT % BASE, ones_BT, ones_BT], dim=-1)
        b = b[:, None].to(k_BGTK.dtype)
        return a.expand(*q_BHTK.shape[:3], -1), b.expand(*k_BGTK.shape[:3], -1)
