"""Additive score (Bahdanau et al., 2015, arXiv:1409.0473): s = v . tanh(W_q q + W_k k)."""

import torch
from torch import Tensor, nn

from outrider.torch.nn.score.base import ScoreBase, map_heads


class Score(ScoreBase):
    """Scores a query and a key with one small network per head."""

    pairwise = True

    def build(self, positions: int | None) -> None:
        """Create W_q and v of every head, W_k of every key-value head."""
        self.query_HKK = nn.Parameter(torch.empty(self.heads, self.width, self.width))
        self.key_GKK = nn.Parameter(torch.empty(self.kv_heads, self.width, self.width))
        self.vector_HK = nn.Parameter(torch.empty(self.heads, self.width))

    def reset(self) -> None:
        """Initialise in the steep part of tanh, with scores of about the size of a scaled dot."""
        bound = (3 / self.width) ** 0.5
        nn.init.uniform_(self.query_HKK, -bound, bound)
        nn.init.uniform_(self.key_GKK, -bound, bound)
        nn.init.uniform_(self.vector_HK, -bound, bound)

    def queries(self, q_BHTK: Tensor) -> Tensor:
        """Return W_q q."""
        return map_heads(q_BHTK, self.query_HKK)

    def keys(self, k_BGSK: Tensor) -> Tensor:
        """Return W_k k."""
        return map_heads(k_BGSK, self.key_GKK)

    def weights(self) -> tuple[Tensor, ...]:
        """Return v of every head."""
        return (self.vector_HK,)

    def pairs(self, a_BHTK: Tensor, b_BHSK: Tensor, *weights: Tensor) -> Tensor:
        """Return v . tanh(a + b)."""
        (vector_HK,) = weights
        hidden_BHTSK = (a_BHTK[:, :, :, None] + b_BHSK[:, :, None]).tanh()
        return (hidden_BHTSK @ vector_HK[:, None, :, None]).squeeze(-1)
