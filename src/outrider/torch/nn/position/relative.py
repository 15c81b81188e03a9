"""Relative positions (Transformer-XL, Dai et al., 2019, arXiv:1901.02860).

    s(i, j) = ((q_i + u) . k_j + (q_i + v) . W R(i - j)) / sqrt(K)      R(d) = [sin(d f), cos(d f)]

u and v (a vector per head) and W (a K x E matrix per head) are learned. With g = W'(q_i + v), split
into its sine half g1 and its cosine half g2, the angle-sum identities give

    g . R(i - j) = cos(j f) . (g1 sin(i f) + g2 cos(i f)) + sin(j f) . (g2 sin(i f) - g1 cos(i f))

a product of a vector per query and a vector per key: E further columns, and no T x T bias.
"""

import torch
from torch import Tensor, nn

from outrider.torch.nn.position import Columns, Positions, SineTable


class Relative(Columns):
    """The position terms of Transformer-XL, with encodings of width E."""

    def __init__(self, heads: int, *, head_width: int, codes: int) -> None:
        super().__init__(codes, head_width=head_width)
        self.table = SineTable(codes)
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, head_width))
        """u: preference for content, independent of the query."""
        self.place_bias = nn.Parameter(torch.zeros(heads, 1, head_width))
        """v: preference for distances, independent of the query."""
        self.weight_HKE = nn.Parameter(torch.zeros(heads, head_width, codes))

    def content(self, q_BHTK: Tensor) -> Tensor:
        """Return q + u."""
        return q_BHTK + self.content_bias.to(q_BHTK.dtype)

    def forward(
        self, q_BHTK: Tensor, k_BGTK: Tensor, positions: Positions
    ) -> tuple[Tensor, Tensor]:
        """Return the rotated projections of the queries, and the encodings of the positions."""
        sin, cos = (part[:, None] for part in self.table.look_up(positions, q_BHTK))
        scale = self.root / q_BHTK.shape[-1] ** 0.5
        biased_BHTK = (q_BHTK + self.place_bias.to(q_BHTK.dtype)) * scale
        sine, cosine = (biased_BHTK @ self.weight_HKE).chunk(2, dim=-1)
        a = torch.cat([sine * sin + cosine * cos, cosine * sin - sine * cos], dim=-1)
        b = torch.cat([cos, sin], dim=-1)
        return a, b.expand(*k_BGTK.shape[:3], -1)
