"""Attention with any score and normaliser, block by block (as FlashAttention does for softmax).

    softmax    y_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij)
    tanh_exp   y_i = sum_j tanh(s_ij) v_j / sum_j exp(s_ij)      weights may be negative

A block is a range of queries against a range of keys. Sums over keys are rescaled by the running
maximum of the scores, so there is no T x S matrix, and vectors per pair exist for one block only.
Blocks without visible pairs are skipped. The backward stores inputs, outputs and
L_i = log sum_j exp(s_ij), and recomputes each block:

    softmax    w = exp(s - L)          ds = w (dy . v_j - dy . y)
    tanh_exp   w = tanh(s) exp(-L)     ds = (1 - tanh(s)^2) exp(-L) (dy . v_j) - exp(s - L) (dy . y)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.torch.nn.kernel.dense import repeat_heads
from outrider.torch.nn.score import ScoreBase

NORMALISERS = ("softmax", "tanh_exp")
BLOCK_NUMBERS = 1 << 19
"""Limit on the numbers held while scoring a block, unless it is at the minimum size `LEAST`."""
LEAST, MOST = 16, 4096
"""Shortest and longest side of a block."""

Visible = Callable[[int, int], tuple[int, Tensor]]
"""For queries first to last - 1: the first key that may be visible, and the mask of keys from
there on, [B or 1, H or 1, last - first, keys]."""


@dataclass(frozen=True, eq=False)
class Scoring:
    """Score, normaliser, pattern, positions and dropout of one attention."""

    score: ScoreBase
    normaliser: str
    visible: Visible
    at: tuple[Tensor, Tensor] | None = None
    """Positions of queries [B or 1, T] and keys [B or 1, S]; None if both count from 0."""
    dropout: float = 0.0
    """Dropout on the weights."""


class _Block(NamedTuple):
    """Queries `rows` against keys `cols`; `keep` is None if all pairs are visible."""

    rows: slice
    cols: slice
    keep: Tensor | None
    number: int


@torch.compiler.disable  # type: ignore[untyped-decorator]  # loops over blocks would be unrolled
def blockwise(scoring: Scoring, a_BHTE: Tensor, b_BGSE: Tensor, v_BGSK: Tensor) -> Tensor:
    """Attend from mapped queries to mapped keys; a query without visible keys gets zeros."""
    seed = int(torch.randint(1 << 62, ())) if scoring.dropout else 0
    score = scoring.score
    out: Tensor = _Blockwise.apply(  # type: ignore[no-untyped-call]
        scoring, seed, a_BHTE, b_BGSE, v_BGSK, score.table(), *score.weights()
    )
    return out


def dense(scoring: Scoring, a_BHTE: Tensor, b_BGSE: Tensor, v_BGSK: Tensor) -> Tensor:
    """Compute `blockwise` as a single block with plain autograd, without dropout."""
    start, keep = scoring.visible(0, a_BHTE.shape[2])
    end = start + keep.shape[-1]
    block = _Block(slice(0, a_BHTE.shape[2]), slice(start, end), keep, 0)
    table = _table(scoring, scoring.score.table(), block)
    s_BHTS = _scores(
        scoring.score, a_BHTE, b_BGSE[:, :, block.cols], table, *scoring.score.weights()
    )
    hidden = ~keep
    # Finite, so that a row without visible keys does not become NaN.
    seen_BHTS = s_BHTS.masked_fill(hidden, torch.finfo(s_BHTS.dtype).min)
    if scoring.normaliser == "tanh_exp":
        lse_BHT1 = seen_BHTS.logsumexp(-1, keepdim=True).masked_fill(hidden.all(-1, True), 0)
        weight_BHTS = s_BHTS.tanh().masked_fill(hidden, 0) * (-lse_BHT1).exp()
    else:
        weight_BHTS = seen_BHTS.softmax(-1)
    return weight_BHTS.to(v_BGSK.dtype) @ repeat_heads(v_BGSK[:, :, block.cols], a_BHTE.shape[1])


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scoring: Scoring,
        seed: int,
        a_BHTE: Tensor,
        b_BGSE: Tensor,
        v_BGSK: Tensor,
        table_HPP: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        with torch.autocast(a_BHTE.device.type, enabled=False):
            inputs = _Inputs(a_BHTE, b_BGSE, v_BGSK, table_HPP, weights)
            out, lse = _attend(scoring, seed, inputs)
        ctx.scoring, ctx.seed = scoring, seed
        ctx.save_for_backward(a_BHTE, b_BGSE, v_BGSK, table_HPP, out, lse, *weights)
        return out.to(v_BGSK.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout_BHTK: Tensor) -> tuple[Tensor | None, ...]:
        a, b, v, table, out, lse, *weights = ctx.saved_tensors
        assert ctx.scoring.at is None, "cached steps are not trained"
        with torch.autocast(a.device.type, enabled=False):
            inputs = _Inputs(a, b, v, table, tuple(weights))
            grads = _Gradients(ctx.scoring, ctx.seed, inputs, out, lse, dout_BHTK)
            grads.collect()
        grads_of = (grads.a, grads.b, grads.v, grads.table, *grads.weights)
        pairs = zip(grads_of, (a, b, v, table, *weights), strict=True)
        return None, None, *(None if x is None else x.to(y.dtype) for x, y in pairs)


class _Inputs(NamedTuple):
    a: Tensor
    b: Tensor
    v: Tensor
    table: Tensor | None
    weights: tuple[Tensor, ...]

    @property
    def precision(self) -> torch.dtype:
        """Working precision: at least float32."""
        return torch.promote_types(self.a.dtype, torch.float32)


def _attend(scoring: Scoring, seed: int, x: _Inputs) -> tuple[Tensor, Tensor]:
    """Return outputs [B, H, T, K] and L [B, H, T, 1], both in the working precision."""
    batch, heads, length, _ = x.a.shape
    out = x.v.new_zeros((batch, heads, length, x.v.shape[-1]), dtype=x.precision)
    lse = out.new_full((batch, heads, length, 1), -torch.inf)
    weights = [weight.to(x.precision) for weight in x.weights]
    for rows, blocks in _plan(scoring, x):
        a = x.a[:, :, rows].to(x.precision)
        most = a.new_full((*a.shape[:3], 1), -torch.inf)
        total, sums = torch.zeros_like(most), torch.zeros_like(out[:, :, rows])
        for block in blocks:
            table = _table(scoring, x.table, block)
            s = _scores(scoring.score, a, x.b[:, :, block.cols].to(x.precision), table, *weights)
            hidden_s = s if block.keep is None else s.masked_fill(~block.keep, -torch.inf)
            before, most = most, torch.maximum(most, hidden_s.amax(-1, keepdim=True))
            base = most.masked_fill(most == -torch.inf, 0)  # any finite value
            exp, shrink = (hidden_s - base).exp(), (before - base).exp()
            total = total * shrink + exp.sum(-1, keepdim=True)
            weight = exp
            if scoring.normaliser == "tanh_exp":
                weight, shrink = s.tanh().masked_fill(hidden_s == -torch.inf, 0), exp.new_ones(())
            weight = _drop(weight, scoring, seed, block)
            v = repeat_heads(x.v[:, :, block.cols].to(x.precision), heads)
            sums = sums * shrink + weight @ v
        lse[:, :, rows] = most + total.log()
        divided = sums / total
        if scoring.normaliser == "tanh_exp":
            divided = sums * (-lse[:, :, rows]).exp()
        out[:, :, rows] = divided.masked_fill(total == 0, 0)
    return out, lse


class _Gradients:
    """Gradients summed over all blocks."""

    def __init__(
        self, scoring: Scoring, seed: int, x: _Inputs, out: Tensor, lse: Tensor, dout: Tensor
    ) -> None:
        self.scoring, self.seed, self.x, self.lse = scoring, seed, x, lse
        self.dout = dout.to(x.precision)
        self.along = (self.dout * out).sum(-1, keepdim=True)
        self.a, self.b, self.v = (torch.zeros_like(t, dtype=x.precision) for t in (x.a, x.b, x.v))
        self.table = None if x.table is None else torch.zeros_like(x.table, dtype=x.precision)
        self.weights = [torch.zeros_like(weight, dtype=x.precision) for weight in x.weights]

    def collect(self) -> None:
        """Add the gradients of all blocks."""
        for _, blocks in _plan(self.scoring, self.x):
            for block in blocks:
                self._add(block)

    def _add(self, block: _Block) -> None:
        x, rows, cols = self.x, block.rows, block.cols
        table = _table(self.scoring, x.table, block)
        parts = [x.a[:, :, rows], x.b[:, :, cols], *([] if table is None else [table]), *x.weights]
        leaves = [part.detach().to(x.precision).requires_grad_() for part in parts]
        rest = leaves[2:] if table is not None else [None, *leaves[2:]]
        with torch.enable_grad():
            s = _scores(self.scoring.score, leaves[0], leaves[1], *rest)
        weight, ds = self._slopes(s.detach(), block)
        grads = iter(torch.autograd.grad(s, leaves, ds))
        self.a[:, :, rows] += next(grads)
        self.b[:, :, cols] += next(grads)
        if table is not None:
            assert self.table is not None
            self.table[:, rows, cols] += next(grads)
        for total, part in zip(self.weights, grads, strict=True):
            total += part
        dv = weight.transpose(-1, -2) @ self.dout[:, :, rows]
        self.v[:, :, cols] += dv.view(len(dv), x.v.shape[1], -1, *dv.shape[2:]).sum(2)

    def _slopes(self, s: Tensor, block: _Block) -> tuple[Tensor, Tensor]:
        """Return the weights, and the gradients of the scores."""
        x, lse = self.x, self.lse[:, :, block.rows]
        along = self.along[:, :, block.rows]
        v = repeat_heads(x.v[:, :, block.cols].to(x.precision), x.a.shape[1])
        dweight = self.dout[:, :, block.rows] @ v.transpose(-1, -2)
        dweight = _drop(dweight, self.scoring, self.seed, block)
        weight = softmax = (s - lse).exp()
        ds = softmax * (dweight - along)
        if self.scoring.normaliser == "tanh_exp":
            tanh, scale = s.tanh(), (-lse).exp()
            weight = tanh * scale
            ds = (1 - tanh * tanh) * scale * dweight - softmax * along
        if block.keep is not None:
            weight, ds = weight.masked_fill(~block.keep, 0), ds.masked_fill(~block.keep, 0)
        return _drop(weight, self.scoring, self.seed, block), ds


def _scores(
    score: ScoreBase, a_BHTE: Tensor, b_BGSE: Tensor, table: Tensor | None, *weights: Tensor
) -> Tensor:
    """Score the pairs of a block; columns beyond the score's width are a bias a_i . b_j."""
    width, b_BHSE = score.width, repeat_heads(b_BGSE, a_BHTE.shape[1])
    s_BHTS = score.pairs(a_BHTE[..., :width], b_BHSE[..., :width], *weights)
    if a_BHTE.shape[-1] > width:
        s_BHTS = s_BHTS + a_BHTE[..., width:] @ b_BHSE[..., width:].transpose(-1, -2)
    if table is not None:
        missing = [n - m for n, m in zip(s_BHTS.shape[-2:], table.shape[-2:], strict=True)]
        s_BHTS = s_BHTS + F.pad(table, (0, missing[1], 0, missing[0]))
    return s_BHTS


def _table(scoring: Scoring, table_HPP: Tensor | None, block: _Block) -> Tensor | None:
    """Return a block's part of the table, [H or B, H, ...]; shorter or None beyond its end."""
    if table_HPP is None:
        return None
    if scoring.at is None:
        part = table_HPP[:, block.rows, block.cols]
        return part if part.numel() else None
    i_BT1, j_B1S = scoring.at[0][:, block.rows, None], scoring.at[1][:, None, block.cols]
    size = table_HPP.shape[-1]
    inside = (i_BT1 < size) & (j_B1S < size)
    part_HBTS = table_HPP[:, i_BT1.clamp(0, size - 1), j_B1S.clamp(0, size - 1)]
    return (part_HBTS * inside).transpose(0, 1)


def _plan(scoring: Scoring, x: _Inputs) -> Iterator[tuple[slice, list[_Block]]]:
    """Cut queries and keys into blocks, without those that have no visible pair."""
    batch, heads, length, width = x.a.shape
    each = batch * heads * (width if scoring.score.pairwise else 1)
    side = _power_of_two((BLOCK_NUMBERS / each) ** 0.5)
    number = 0
    for first in range(0, length, side):
        rows = slice(first, min(first + side, length))
        start, keep = scoring.visible(rows.start, rows.stop)
        span = _power_of_two(BLOCK_NUMBERS / each / (rows.stop - rows.start))
        seen_S, full_S = keep.flatten(0, 2).any(0), keep.flatten(0, 2).all(0)
        skew = start % span  # blocks start at multiples of their length
        padding = (skew, -(skew + len(seen_S)) % span)
        seen = F.pad(seen_S, padding).view(-1, span).any(1).tolist()
        full = F.pad(full_S, padding, value=True).view(-1, span).all(1).tolist()
        blocks = []
        for index in range(len(seen)):
            if seen[index]:
                low = max(0, index * span - skew)
                high = min((index + 1) * span - skew, len(seen_S))
                part = None if full[index] else keep[..., low:high]
                blocks.append(_Block(rows, slice(start + low, start + high), part, number))
                number += 1
        yield rows, blocks


def _power_of_two(limit: float) -> int:
    return min(MOST, 1 << (max(LEAST, int(limit)).bit_length() - 1))


def _drop(weight: Tensor, scoring: Scoring, seed: int, block: _Block) -> Tensor:
    """Apply dropout; recomputing a block draws the same mask."""
    if not scoring.dropout:
        return weight
    generator = torch.Generator(weight.device).manual_seed(seed + block.number)
    kept = torch.rand(weight.shape, generator=generator, device=weight.device) >= scoring.dropout
    return weight * kept / (1 - scoring.dropout)
