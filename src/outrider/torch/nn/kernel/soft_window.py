"""Attention through windows with a learned soft edge.

    w_ij = m(i - j) exp(s_ij) / sum_r m(i - r) exp(s_ir)        s_ij = q_i . k_j / sqrt(K)
    m(x) = clamp((R + z - x) / R, 0, 1)                         for x >= 0, otherwise 0

The edge z needs a gradient, which fused kernels do not give for a mask: PyTorch silently falls back
to quadratic memory. Here queries are processed in blocks, each with the keys its window reaches.
The backward recomputes the weights of a block instead of storing them, so memory is linear.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from outrider.torch.nn.dropout import dropout as drop
from outrider.torch.nn.kernel.dense import repeat_heads


def log_fade(span: Tensor, distance: Tensor, ramp: int) -> Tensor:
    """Return log m: 0 inside the window, -inf outside and for negative distances."""
    fade = ((ramp + span - distance) / ramp).clamp(max=1)
    seen = (fade > 0) & (distance >= 0)
    return fade.masked_fill(~seen, 1).log().masked_fill(~seen, -torch.inf)


def attend_softly(
    q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, bias: Tensor, *, dropout: float = 0.0
) -> Tensor:
    """Attend with a bias that broadcasts to [B, H, T, S] and may need a gradient."""
    grouped = q_BHTK.shape[1] != k_BGSK.shape[1]
    if not torch.is_grad_enabled() and not dropout:
        return F.scaled_dot_product_attention(
            q_BHTK, k_BGSK, v_BGSK, attn_mask=bias.to(q_BHTK.dtype), enable_gqa=grouped
        )
    k_BHSK, v_BHSK = (repeat_heads(x, q_BHTK.shape[1]) for x in (k_BGSK, v_BGSK))
    scores_BHTS = (q_BHTK * q_BHTK.shape[-1] ** -0.5) @ k_BHSK.transpose(-1, -2) + bias
    weights_BHTS = drop(scores_BHTS.softmax(-1), dropout, dropout > 0)
    return weights_BHTS.to(v_BHSK.dtype) @ v_BHSK


class QueryBlock(NamedTuple):
    """Queries from `start` to `end` with keys from `first` to `end`."""

    start: int
    end: int
    first: int

    def distance(self, device: torch.device) -> Tensor:
        """Return i - j of all pairs."""
        i = torch.arange(self.start, self.end, device=device)
        return i[:, None] - torch.arange(self.first, self.end, device=device)


def cut_blocks(length: int, size: int, reaches: Sequence[int]) -> list[QueryBlock]:
    """Cut `length` queries into blocks of `size`; a query of block n sees `reaches[n]` keys."""
    starts = range(0, length, size)
    return [
        QueryBlock(start, min(start + size, length), max(0, start - reach + 1))
        for start, reach in zip(starts, reaches, strict=True)
    ]


class HeadGroup(NamedTuple):
    """Heads that are computed together, and their blocks."""

    heads: list[int]
    kv_heads: list[int]
    """The key-value head of each head."""
    blocks: list[QueryBlock]
    size: int
    """Queries of a block; the last may have fewer."""

    @property
    def reach(self) -> int:
        """Maximum number of keys up to the first query of a block."""
        return max(block.start - block.first for block in self.blocks) + 1

    def bias(self, span_1H11: Tensor, ramp: int) -> Tensor:
        """Return a bias that contains those of all blocks, [1, H, size, reach - 1 + size]."""
        whole = QueryBlock(self.reach - 1, self.reach - 1 + self.size, 0)
        return log_fade(_take(span_1H11, self.heads), whole.distance(span_1H11.device), ramp)

    def bias_of(self, bias_1HTS: Tensor, block: QueryBlock) -> Tensor:
        """View the part of one block in the bias of all."""
        skip = self.reach - 1 - (block.start - block.first)
        return bias_1HTS[..., : block.end - block.start, skip : skip + block.end - block.first]

    def cut(
        self, block: QueryBlock, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of one block."""
        keys = slice(block.first, block.end)
        return (
            _take(q, self.heads, slice(block.start, block.end)),
            _take(k, self.kv_heads, keys),
            _take(v, self.kv_heads, keys),
        )


def run_groups(
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTK: Tensor,
    span_BHT1: Tensor,
    parts: list[HeadGroup],
    *,
    ramp: int,
    dropout: float = 0.0,
) -> Tensor:
    """Attend block by block; spans are per head, [1, H, 1, 1], or per query, [B, H, T, 1]."""
    each = span_BHT1.shape[0] * span_BHT1.shape[2] > 1
    edges = [span_BHT1] if each else [part.bias(span_BHT1, ramp) for part in parts]
    window = _Window(parts, ramp if each else None)
    if dropout or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return window.forward(q_BHTK, k_BGTK, v_BGTK, edges, dropout)
    apply: Callable[..., Tensor] = _Recomputed.apply
    return apply(window, q_BHTK, k_BGTK, v_BGTK, *edges)


class _Window(NamedTuple):
    """The groups of heads, and the form of the spans."""

    parts: list[HeadGroup]
    ramp: int | None
    """Set if every query has its own span: the single edge then holds the spans, [B, H, T, 1].
    Otherwise there is an edge for each group, its bias."""

    def edge(self, edges: Sequence[Tensor], index: int, block: QueryBlock) -> Tensor:
        """Return the part of the edges for one block."""
        part = self.parts[index]
        if self.ramp is None:
            return part.bias_of(edges[index], block)
        return _take(edges[0], part.heads, slice(block.start, block.end))

    def bias(self, edge: Tensor, block: QueryBlock) -> Tensor:
        """Return the score bias for this part of the edges."""
        if self.ramp is None:
            return edge
        return log_fade(edge, block.distance(edge.device), self.ramp)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, edges: Sequence[Tensor], dropout: float = 0.0
    ) -> Tensor:
        """Compute all blocks of all groups."""
        out = torch.empty_like(q)
        for index, part in enumerate(self.parts):
            for block in part.blocks:
                bias = self.bias(self.edge(edges, index, block), block)
                out_block = attend_softly(*part.cut(block, q, k, v), bias, dropout=dropout)
                out[:, part.heads, block.start : block.end] = out_block
        return out


class _Recomputed(torch.autograd.Function):
    """`_Window.forward` that recomputes the blocks in the backward."""

    @staticmethod
    def forward(
        ctx: Any, window: _Window, q: Tensor, k: Tensor, v: Tensor, *edges: Tensor
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, *edges)
        ctx.window = window
        return window.forward(q, k, v, edges)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        window: _Window = ctx.window
        q, k, v, *edges = ctx.saved_tensors
        grads = [torch.zeros_like(x) for x in ctx.saved_tensors]
        for index, part in enumerate(window.parts):
            for block in part.blocks:
                pieces = [*part.cut(block, q, k, v), window.edge(edges, index, block)]
                queries, keys = slice(block.start, block.end), slice(block.first, block.end)
                block_grads = _block_grads(
                    window, block, pieces, _take(grad_out, part.heads, queries)
                )
                _add(grads[0][:, :, queries], part.heads, block_grads[0])
                _add(grads[1][:, :, keys], part.kv_heads, block_grads[1])
                _add(grads[2][:, :, keys], part.kv_heads, block_grads[2])
                if window.ramp is None:
                    window.edge(grads[3:], index, block).add_(block_grads[3])
                else:
                    _add(grads[3][:, :, queries], part.heads, block_grads[3])
        return None, *grads


def _block_grads(
    window: _Window, block: QueryBlock, pieces: list[Tensor], grad_out: Tensor
) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        q, k, v, edge = pieces = [piece.detach().requires_grad_() for piece in pieces]
        out = attend_softly(q, k, v, window.bias(edge, block))
    return torch.autograd.grad(out, pieces, grad_out)


def _take(x: Tensor, heads: list[int], tokens: slice = slice(None)) -> Tensor:
    """Select heads and tokens; a view if all heads are selected."""
    if heads == list(range(x.shape[1])):
        return x[:, :, tokens]
    return x[:, heads, tokens]


def _add(place: Tensor, heads: list[int], grad: Tensor) -> None:
    """Add to these heads, some of which may repeat."""
    if heads == list(range(place.shape[1])):
        place += grad
    else:
        place.index_add_(1, torch.tensor(heads, device=place.device), grad)
