"""The contract of a score.

    s(i, j) = pairs(queries(q_i), keys(k_j)) + U_(i,j)

`queries` and `keys` map single tokens, so they cost T and decoding does them once. `pairs` looks at
two of them and is only ever given a tile. The table U of positions is optional.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

__all__ = ["ScoreBase", "map_heads"]


class ScoreBase(nn.Module):
    """How well a key answers a query."""

    pairwise: ClassVar[bool] = False
    """`pairs` holds a whole vector for every pair, not one number."""

    def __init__(self, heads: int, kv_heads: int, width: int, positions: int | None) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, width
        self.build(positions)
        self.reset()

    def build(self, positions: int | None) -> None:
        """Make the parameters."""

    def reset(self) -> None:
        """Give the parameters their first values."""

    def queries(self, q_BHTK: Tensor) -> Tensor:
        """Map queries; as wide as they came."""
        return q_BHTK

    def keys(self, k_BGSK: Tensor) -> Tensor:
        """Map keys; as wide as they came."""
        return k_BGSK

    def weights(self) -> tuple[Tensor, ...]:
        """Return the parameters that `pairs` is given."""
        return ()

    def table(self) -> Tensor | None:
        """Return U_(i,j) of the first P positions, [H, P, P]; pairs beyond get nothing."""
        return None

    def pairs(self, a_BHTK: Tensor, b_BHSK: Tensor, *weights: Tensor) -> Tensor:
        """Score every mapped query with every mapped key, [B, H, T, S]."""
        return a_BHTK @ b_BHSK.transpose(-1, -2)


def map_heads(x_BHTK: Tensor, matrix_GKE: Tensor) -> Tensor:
    """Multiply every head by its own matrix; heads given repeatedly use theirs repeatedly."""
    repeats = x_BHTK.shape[1] // matrix_GKE.shape[0]
    if repeats > 1:
        matrix_GKE = matrix_GKE.repeat_interleave(repeats, dim=0)
    return torch.matmul(x_BHTK, matrix_GKE)
