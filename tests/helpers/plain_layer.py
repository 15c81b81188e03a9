"""One Transformer layer for a single row, computed from its weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.torch.nn.layer.block import Block


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    return (x - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def look(q_AD: Tensor, k_SD: Tensor, v_SD: Tensor, keep_AS: Tensor, heads: int) -> Tensor:
    """Attend head by head; a mask is minus infinity."""
    parts = []
    for q, k, v in zip(*(x.chunk(heads, dim=-1) for x in (q_AD, k_SD, v_SD)), strict=True):
        score = (q @ k.T) / q.shape[-1] ** 0.5
        parts.append(score.masked_fill(~keep_AS, -torch.inf).softmax(-1) @ v)
    return torch.cat(parts, dim=-1)


def join(residual: nn.Module, x: Tensor, part: Tensor) -> Tensor:
    return x + part if residual.pre else normed(residual.norm, x + part)


def given(residual: nn.Module, x: Tensor) -> Tensor:
    return normed(residual.norm, x) if residual.pre else x


def layer(
    block: Block, u_TD: Tensor, at: list[int], keep_TT: Tensor, memory_SD: Tensor | None = None
) -> Tensor:
    """Compute the tokens `at` of a row; a token attends where `keep_TT` allows."""
    attention, width = block.attention, u_TD.shape[-1]
    qkv = given(block.attention_residual, u_TD) @ attention.qkv.weight.T + attention.qkv.bias
    q, k, v = qkv.split([width, width, width], dim=-1)
    seen = look(q[at], k, v, keep_TT[at], attention.heads)
    x = join(block.attention_residual, u_TD[at], seen @ attention.out.weight.T + attention.out.bias)
    if block.cross is not None and memory_SD is not None:
        cross = block.cross
        q = given(block.cross_residual, x) @ cross.q.weight.T + cross.q.bias
        k, v = (memory_SD @ cross.kv.weight.T + cross.kv.bias).chunk(2, dim=-1)
        everything = torch.ones(len(q), len(k), dtype=torch.bool)
        seen = look(q, k, v, everything, cross.heads)
        x = join(block.cross_residual, x, seen @ cross.out.weight.T + cross.out.bias)
    forward = block.feedforward
    inner = F.relu(given(block.feedforward_residual, x) @ forward.up.weight.T + forward.up.bias)
    return join(block.feedforward_residual, x, inner @ forward.down.weight.T + forward.down.bias)


def coordinates(length: int, width: int, step: int) -> Tensor:
    """Return the encodings of positions 0 to length - 1 at a step, counted from 1."""
    k = torch.arange(width // 2, dtype=torch.float64)
    frequency = 10_000 ** (-2 * k / width)
    place = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    depth = (step * frequency)[None]
    return torch.cat([place.sin() + depth.sin(), place.cos() + depth.cos()], dim=-1)
