"""Label-smoothed cross entropy that reads the logits once.

    loss = s * sum_n w_n (lse(z_n) - (1 - e) z_n[y_n] - e mean_v z_n[v])    over n with a label
    dloss/dz_n = s * w_n (softmax(z_n) - (1 - e) onehot(y_n) - e / V)

`torch.nn.functional.cross_entropy` with smoothing materialises several float32 tensors of the
logits' size, on a CPU a tenth of a training step. Here loss and gradient are computed in one pass
over chunks of rows that stay in the cache, in float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100
"""Label of positions that are left out of the loss."""

_CHUNK = 2**18
"""Logits per chunk on a CPU: 1 MiB of float32, which fits the cache of a core."""


def smoothed_cross_entropy(
    logits_NV: Tensor,
    label_N: Tensor,
    smoothing: float = 0.0,
    scale: float = 1.0,
    weight_N: Tensor | None = None,
) -> Tensor:
    """Return the loss summed over all labelled tokens, times `scale`.

    `weight_N` weights the tokens; it gets no gradient.
    """
    if weight_N is None:
        weight_N = torch.ones_like(label_N, dtype=torch.float32)
    apply = _SmoothedCrossEntropy.apply
    return apply(logits_NV, label_N, smoothing, scale, weight_N)  # type: ignore[no-untyped-call]


def counted_places(label_BN: Tensor, step: int) -> Tensor:
    """Return the indices of all labels, filled with unlabelled ones to a multiple of `step`.

    CPU kernels are compiled per shape, so there should be few shapes. The result is never empty.
    """
    counted_N = (label_BN != IGNORED).flatten()
    count = int(counted_N.sum())
    full = min(len(counted_N), max(1, -(-count // step)) * step)
    return counted_N.int().argsort(descending=True, stable=True)[:full]


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_NV: Tensor,
        label_N: Tensor,
        smoothing: float,
        scale: float,
        weight_N: Tensor,
    ) -> Tensor:
        rows, vocabulary = logits_NV.shape
        step = max(1, _CHUNK // vocabulary if logits_NV.device.type == "cpu" else rows)
        grad_NV = torch.empty_like(logits_NV) if ctx.needs_input_grad[0] else None
        losses = []
        for start in range(0, rows, step):
            part = slice(start, start + step)
            scale_N = weight_N[part] * scale
            loss, slope_NV = _chunk(logits_NV[part], label_N[part], smoothing, scale_N)
            losses.append(loss)
            if grad_NV is not None:
                grad_NV[part] = slope_NV
        ctx.save_for_backward(grad_NV)
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        (grad_NV,) = ctx.saved_tensors
        # A training loss is the root of its graph: skip the multiplication by one.
        if grad.device.type == "cpu" and grad.item() == 1:
            return grad_NV, None, None, None, None
        return grad_NV * grad.to(grad_NV.dtype), None, None, None, None


def _chunk(
    logits_NV: Tensor, label_N: Tensor, smoothing: float, scale_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return loss and gradient of a chunk of rows."""
    wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32), copy=True)
    counted_N1 = (label_N != IGNORED)[:, None]
    label_N1 = label_N[:, None].where(counted_N1, 0)
    picked_N1 = wide_NV.gather(1, label_N1)
    mean_N1 = wide_NV.mean(1, keepdim=True) if smoothing else 0.0
    top_N1 = wide_NV.amax(1, keepdim=True)
    exp_NV = wide_NV.sub_(top_N1).exp_()
    sum_N1 = exp_NV.sum(1, keepdim=True)
    lse_N1 = top_N1 + sum_N1.log()
    loss_N1 = lse_N1 - (1 - smoothing) * picked_N1 - smoothing * mean_N1
    weight_N1 = counted_N1.to(wide_NV.dtype) * scale_N[:, None]
    slope_NV = exp_NV.mul_(weight_N1 / sum_N1)
    if smoothing:
        slope_NV.sub_(weight_N1 * (smoothing / logits_NV.shape[1]))
    slope_NV.scatter_add_(1, label_N1, (smoothing - 1) * weight_N1)
    return (loss_N1 * weight_N1).sum(), slope_NV
