"""Scaled dot product (Vaswani et al., 2017, arXiv:1706.03762): s = q . k / sqrt(K).

With softmax the kernels of PyTorch compute it; this form serves the other normalisers.
"""

from torch import Tensor

from outrider.torch.nn.score.base import ScoreBase

__all__ = ["Score"]


class Score(ScoreBase):
    """No parameters."""

    def queries(self, q_BHTK: Tensor) -> Tensor:
        """Scale."""
        return q_BHTK * self.width**-0.5
