"""Norms over the last dimension.

layer   (x - mean(x)) / sqrt(var(x) + eps) * w + b        (Ba et al., 2016, arXiv:1607.06450)
rms     x / sqrt(mean(x^2) + eps) * w                     (Zhang and Sennrich, 2019)
"""

from typing import NamedTuple

from torch import nn

Norm = nn.LayerNorm | nn.RMSNorm


class NormKind(NamedTuple):
    """The norm of all parts of a model."""

    rms: bool = False
    eps: float = 1e-5

    def build(self, width: int) -> Norm:
        """Return a new norm."""
        kind = nn.RMSNorm if self.rms else nn.LayerNorm
        return kind(width, eps=self.eps)
