"""The score of "slow multi-head attention": s = |ReLU(M_q q + M_k k)| / sqrt(K), a Euclidean norm.

Where all units are zero, the norm is not differentiable; its gradient is taken as zero.
"""

import torch
from torch import Tensor, nn

from outrider.torch.nn.score.base import ScoreBase, map_heads


class Score(ScoreBase):
    """The norm of a small network's activations; never negative."""

    pairwise = True

    def build(self, positions: int | None) -> None:
        """Create M_q of every head and M_k of every key-value head."""
        self.query_HKK = nn.Parameter(torch.empty(self.heads, self.width, self.width))
        self.key_GKK = nn.Parameter(torch.empty(self.kv_heads, self.width, self.width))

    def reset(self) -> None:
        """Initialise so that the variance is preserved."""
        bound = (3 / self.width) ** 0.5
        nn.init.uniform_(self.query_HKK, -bound, bound)
        nn.init.uniform_(self.key_GKK, -bound, bound)

    def queries(self, q_BHTK: Tensor) -> Tensor:
        """Return M_q q."""
        return map_heads(q_BHTK, self.query_HKK)

    def keys(self, k_BGSK: Tensor) -> Tensor:
        """Return M_k k."""
        return map_heads(k_BGSK, self.key_GKK)

    def pairs(self, a_BHTK: Tensor, b_BHSK: Tensor, *weights: Tensor) -> Tensor:
        """Return the norm of the activations."""
        active_BHTSK = (a_BHTK[:, :, :, None] + b_BHSK[:, :, None]).relu()
        return torch.linalg.vector_norm(active_BHTSK, dim=-1) * self.width**-0.5
