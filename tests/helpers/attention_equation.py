"""Attention as loops: the equation that all variants share."""

from collections.abc import Callable

import torch
from torch import Tensor


def equation(q: Tensor, k: Tensor, v: Tensor, sees: Callable[[int, int], bool]) -> Tensor:
    """y_i = sum_{j in S_i} softmax_j(q_i . k_j / sqrt(K)) v_j for one head: q, k, v are [T, K]."""
    rows = []
    for i in range(len(q)):
        visible = [j for j in range(len(k)) if sees(i, j)]
        scores = torch.stack([q[i] @ k[j] / q.shape[1] ** 0.5 for j in visible])
        weights = scores.exp() / scores.exp().sum()
        rows.append(sum(w * v[j] for w, j in zip(weights, visible, strict=True)))
    return torch.stack(rows)


def assert_same_with_gradient(fast: Tensor, slow: Tensor, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(slow)
    fast_grads = torch.autograd.grad((fast * weight).sum(), inputs)
    slow_grads = torch.autograd.grad((slow * weight).sum(), inputs)
    torch.testing.assert_close(fast_grads, slow_grads, rtol=1e-9, atol=1e-10)


def heads(
    *shape: int, seed: int = 0, device: torch.device | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values, the same on every device."""
    dice = torch.Generator().manual_seed(seed)
    there = device or torch.get_default_device()
    make = (torch.randn(*shape, dtype=torch.float64, generator=dice, device="cpu") for _ in "qkv")
    q, k, v = (x.to(there).requires_grad_() for x in make)
    return q, k, v
