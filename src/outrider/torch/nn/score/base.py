"""The contract of a score.

    s(i, j) = pairs(queries(q_i), keys(k_j)) + U_(i,j)

`queries` and `keys` map single tokens, once per token when decoding. `pairs` combines them and is
called with one tile at a time. The table U of positions is optional.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn


class ScoreBase(nn.Module):
    """Scores pairs of queries and keys."""

    pairwise: ClassVar[bool] = False
    """`pairs` needs a vector per pair, not one number."""

    def __init__(self, heads: int, kv_heads: int, width: int, positions: int | None) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, width
        self.build(positions)
        self.reset()

    def build(self, positions: int | None) -> None:
        """Create the parameters."""

    def reset(self) -> None:
        """Initialise the parameters."""

    def queries(self, q_BHTK: Tensor) -> Tensor:
        """Map queries; the width is unchanged."""
        return q_BHTK

    def keys(self, k_BGSK: Tensor) -> Tensor:
        """Map keys; the width is unchanged."""
        return k_BGSK

    def weights(self) -> tuple[Tensor, ...]:
        """Return the parameters passed to `pairs`."""
        return ()

    def table(self) -> Tensor | None:
        """Return U_(i,j) of the first P positions, [H, P, P]; 0 for other pairs."""
        return None

    def pairs(self, a_BHTK: Tensor, b_BHSK: Tensor, *weights: Tensor) -> Tensor:
        """Score every mapped query with every mapped key, [B, H, T, S]."""
        return a_BHTK @ b_BHSK.transpose(-1, -2)


def map_heads(x_BHTK: Tensor, matrix_GKE: Tensor) -> Tensor:
    """Multiply every head by its matrix; grouped heads share one."""
    repeats = x_BHTK.shape[1] // matrix_GKE.shape[0]
    if repeats > 1:
        matrix_GKE = matrix_GKE.repeat_interleave(repeats, dim=0)
    return torch.matmul(x_BHTK, matrix_GKE)
