"""All heads of a stack as points of a plane: near each other where they look at the same tokens.

Classical multidimensional scaling (Torgerson, 1952): with D the distances of the heads, 1 less
their similarity, and J taking means away, -J D^2 J / 2 holds the inner products of points that lie
that far apart; its first two eigenvectors are the plane that keeps most of them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from outrider.torch.inspect.attention_maps import Maps, head_similarity

__all__ = ["HeadPlane", "head_plane", "in_a_plane"]


class HeadPlane(NamedTuple):
    """Where heads lie, and how alike those of one layer are."""

    points_LH2: Tensor
    kept: float
    """Share of what tells heads apart that the plane shows."""
    alike_L: Tensor
    """Mean similarity of two heads of a layer; 1 where it has only one."""

    @property
    def trend(self) -> float:
        """Rank correlation of a layer's number with how alike its heads are, from -1 to 1.

        1 where every layer's heads are more alike than those of the layer below, 0 for one layer.
        """
        layers = len(self.alike_L)
        if layers < 2:
            return 0.0
        place, rank = torch.arange(layers), self.alike_L.argsort().argsort()
        stacked = torch.stack([place, rank]).double()
        return float(torch.corrcoef(stacked)[0, 1])


def head_plane(part: Maps) -> HeadPlane:
    """Place all heads of a stack."""
    layers, heads = part.weights_LHTS.shape[:2]
    similarity = head_similarity(part.weights_LHTS.flatten(0, 1))
    points, kept = in_a_plane(1 - similarity)
    inside = similarity.view(layers, heads, layers, heads).diagonal(dim1=0, dim2=2)
    others = heads * (heads - 1)
    total_L = inside.sum((0, 1)) - heads
    alike_L = total_L / others if others else torch.ones(layers, dtype=torch.float64)
    return HeadPlane(points.view(layers, heads, 2), kept, alike_L)


def in_a_plane(distance_NN: Tensor) -> tuple[Tensor, float]:
    """Return points whose distances are as near these as a plane allows, and the share it keeps."""
    count = len(distance_NN)
    centre = torch.eye(count, dtype=torch.float64) - 1 / count
    inner = -centre @ distance_NN.double().square() @ centre / 2
    values, vectors = torch.linalg.eigh((inner + inner.T) / 2)
    values = values.clamp(min=0)
    top = values[-2:].flip(0)
    points = vectors[:, -2:].flip(1) * top.sqrt()
    if points.shape[1] < 2:  # one head alone
        points = torch.nn.functional.pad(points, (0, 2 - points.shape[1]))
    total = float(values.sum())
    return points, float(top.sum()) / total if total else 1.0
