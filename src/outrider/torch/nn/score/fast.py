"""The score of "fast fully connected softmax": s = M_q q . M_k k + U_(i,j) + b.

U is a trained table of positions; pairs beyond its size have no such term, so a text may be longer
than the table. M = (I + D) / K^(1/4) with a trained D. D, U and b start at zero, where the score is
the scaled dot product.
"""

import torch
from torch import Tensor, nn

from outrider.torch.nn.score.base import ScoreBase, map_heads

POSITIONS = 512
"""Default size of the table."""


class Score(ScoreBase):
    """A bilinear form, a table of position pairs, and a bias."""

    def build(self, positions: int | None) -> None:
        """Create D_q, U and b of every head, D_k of every key-value head."""
        size = positions or POSITIONS
        self.query_HKK = nn.Parameter(torch.empty(self.heads, self.width, self.width))
        self.key_GKK = nn.Parameter(torch.empty(self.kv_heads, self.width, self.width))
        self.table_HPP = nn.Parameter(torch.empty(self.heads, size, size))
        self.bias_H = nn.Parameter(torch.empty(self.heads))

    def reset(self) -> None:
        """Initialise to the scaled dot product."""
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def queries(self, q_BHTK: Tensor) -> Tensor:
        """Return M_q q."""
        return (q_BHTK + map_heads(q_BHTK, self.query_HKK)) * self.width**-0.25

    def keys(self, k_BGSK: Tensor) -> Tensor:
        """Return M_k k."""
        return (k_BGSK + map_heads(k_BGSK, self.key_GKK)) * self.width**-0.25

    def weights(self) -> tuple[Tensor, ...]:
        """Return b of every head."""
        return (self.bias_H,)

    def table(self) -> Tensor:
        """Return U."""
        return self.table_HPP

    def pairs(self, a_BHTK: Tensor, b_BHSK: Tensor, *weights: Tensor) -> Tensor:
        """Return a . b + bias."""
        (bias_H,) = weights
        return a_BHTK @ b_BHSK.transpose(-1, -2) + bias_H[:, None, None]
