"""The score of "slow multi-head attention": s = |ReLU(M_q q + M_k k)| / sqrt(K), a Euclidean norm.

A norm has no slope where its vector is zero; there, where no unit is awake, the gradient is zero.
"""

import torch
from torch import Tensor, nn

from outrider.torch.nn.score.base import ScoreBase, map_heads

__all__ = ["Score"]


class Score(ScoreBase):
    """How much of a small network a query and a key wake up together; never negative."""

    pairwise = True

    def build(self, positions: int | None) -> None:
        """Make M_q of every head and M_k of every key-value head."""
        self.query_HKK = nn.Parameter(torch.empty(self.heads, self.width, self.width))
        self.key_GKK = nn.Parameter(torch.empty(self.kv_heads, self.width, self.width))

    def reset(self) -> None:
        """Keep the size of what is mapped."""
        bound = (3 / self.width) ** 0.5
        nn.init.uniform_(self.query_HKK, -bound, bound)
        nn.init.uniform_(self.key_GKK, -bound, bound)

    def queries(self, q_BHTK: Tensor) -> Tensor:
        """M_q q."""
        return map_heads(q_BHTK, self.query_HKK)

    def keys(self, k_BGSK: Tensor) -> Tensor:
        """M_k k."""
        return map_heads(k_BGSK, self.key_GKK)

    def pairs(self, a_BHTK: Tensor, b_BHSK: Tensor, *weights: Tensor) -> Tensor:
        """The norm of what is awake; PyTorch's gradient of a norm is zero at zero."""
        awake_BHTSK = (a_BHTK[:, :, :, None] + b_BHSK[:, :, None]).relu()
        return torch.linalg.vector_norm(awake_BHTSK, dim=-1) * self.width**-0.5
