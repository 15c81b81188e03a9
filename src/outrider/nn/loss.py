"""Label-smoothed cross entropy that reads the logits twice and stores them once.

    loss = sum_n lse(z_n) - (1 - e) z_n[y_n] - e mean_v z_n[v]        over n with a label
    dloss/dz_n = softmax(z_n) - (1 - e) onehot(y_n) - e / V

`torch.nn.functional.cross_entropy` with smoothing materialises several tensors of the logits' size;
on a CPU that is a tenth of a training step. It is computed in float32, whatever the logits are.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["IGNORED", "smoothed_cross_entropy"]


IGNORED = -100
"""Label of a position that does not count."""


def smoothed_cross_entropy(logits_NV: Tensor, label_N: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum over all tokens with a label; the caller divides by however many count."""
    apply = _SmoothedCrossEntropy.apply
    return apply(logits_NV, label_N, smoothing)  # type: ignore[no-untyped-call]


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, label_N: Tensor, smoothing: float) -> Tensor:
        wide_NV = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
        lse_N = wide_NV.logsumexp(-1)
        counted_N = label_N != IGNORED
        label_N = label_N.where(counted_N, 0)
        picked_N = wide_NV.gather(1, label_N[:, None])[:, 0]
        loss_N = lse_N - (1 - smoothing) * picked_N
        if smoothing:
            loss_N = loss_N - smoothing * wide_NV.mean(-1)
        ctx.save_for_backward(logits_NV, label_N, lse_N, counted_N)
        ctx.smoothing = smoothing
        return loss_N.where(counted_N, 0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits_NV, label_N, lse_N, counted_N = ctx.saved_tensors
        grad_NV = (logits_NV - lse_N[:, None]).exp_()
        if ctx.smoothing:
            grad_NV -= ctx.smoothing / logits_NV.shape[1]
        target = torch.full_like(label_N, -(1 - ctx.smoothing), dtype=grad_NV.dtype)
        grad_NV.scatter_add_(1, label_N[:, None], target[:, None])
        return grad_NV.mul_((counted_N * grad)[:, None]).to(logits_NV.dtype), None, None
