"""Scaled dot product (Vaswani et al., 2017, arXiv:1706.03762): s = q . k / sqrt(K).

With softmax, PyTorch's kernels compute it; this class serves the other normalisers.
"""

from torch import Tensor

from outrider.torch.nn.score.base import ScoreBase


class Score(ScoreBase):
    """The scaled dot product, without parameters."""

    def queries(self, q_BHTK: Tensor) -> Tensor:
        """Scale queries by 1 / sqrt(K)."""
        return q_BHTK * self.width**-0.5
