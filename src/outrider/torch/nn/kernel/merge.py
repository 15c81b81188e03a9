"""Attention over tiles of a pattern, merged by log-sum-exp.

    S_i = S_i^1 + S_i^2 + ...            no key in two of them
    o_i^p, z_i^p                         output and log-sum-exp of the scores over S_i^p alone
    z_i = log sum_p exp(z_i^p)           y_i = sum_p exp(z_i^p - z_i) o_i^p

A tile is a set of queries with a set of keys (`outrider.torch.nn.kernel.tiles`), both views of the
data. Its gradient needs only the merged y and z, because w_ij = exp(s_ij - z_i) and dL/ds_ij =
w_ij (dy_i . v_j - dy_i . y_i): forward and backward run tile by tile, and memory is linear in the
length.

On a CPU a tile is one call of the flash kernel. With dropout, and on other devices, tiles are plain
matrix products under autograd, which store the scores of the pattern.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.torch.nn.dropout import dropout as drop
from outrider.torch.nn.kernel.dense import repeat_heads
from outrider.torch.nn.kernel.tiles import StridedRange, Tile

BUDGET = 1 << 18
"""Limit on the numbers in the queries or keys of one call, to bound its output."""


def attend_tiles(
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTK: Tensor,
    tiles: Callable[[int], Sequence[Tile]],
    *,
    keep_BT: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend under the pattern given by `tiles(length)`.

    Every query is in exactly one tile without `more`. Rows are padded on the right; padding gets
    zeros.
    """
    k_BGTK, v_BGTK = k_BGTK.to(q_BHTK.dtype), v_BGTK.to(q_BHTK.dtype)
    length = q_BHTK.shape[2]
    if keep_BT is None:
        return _attend(q_BHTK, k_BGTK, v_BGTK, tiles(length), dropout)
    plans = {n: tiles(n) for n in keep_BT.sum(1).tolist()}
    rows = []
    for n, *row in zip(keep_BT.sum(1).tolist(), q_BHTK, k_BGTK, v_BGTK, strict=True):
        q, k, v = (x[None, :, :n] for x in row)
        rows.append(F.pad(_attend(q, k, v, plans[n], dropout), (0, 0, 0, length - n)))
    return torch.cat(rows)


def _attend(
    q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, tiles: Sequence[Tile], dropout: float
) -> Tensor:
    if dropout or q_BHTK.device.type != "cpu" or v_BGTK.shape[3] != q_BHTK.shape[3]:
        return _by_matrix_products(q_BHTK, k_BGTK, v_BGTK, tiles, dropout)
    numbers: list[int] = []
    biases = []
    for tile in tiles:
        numbers += [*tile.queries, *tile.keys, tile.keep is not None, tile.causal, tile.more]
        if tile.keep is not None:
            biases.append(_bias(tile.keep, q_BHTK.dtype))
    return _flash_tiles(q_BHTK, k_BGTK, v_BGTK, biases, numbers)[0]


def _bias(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as a bias; finite, so that queries without visible keys do not become NaN."""
    bias = torch.zeros(keep.shape, dtype=dtype, device=keep.device)
    return bias.masked_fill_(~keep, torch.finfo(dtype).min)


@torch.library.custom_op("outrider::flash_tiles", mutates_args=())
def _flash_tiles(
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTK: Tensor,
    biases: Sequence[Tensor],
    numbers: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Run all tiles through the CPU flash kernel: the output, and z as [B, H, T, 1].

    A custom operator with a plan of plain numbers, because compilers fail on nested views.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHTK, k_BGTK, v_BGTK))
    out, lse = _empty_result(q)
    for row, part, tile in _calls(q, k, biases, numbers):
        part_out, part_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            tile.queries.read(q[row, part]),
            tile.keys.read(k[row]),
            tile.keys.read(v[row]),
            is_causal=tile.causal,
            attn_mask=tile.keep,
        )
        into = tile.queries.read(out[row, part]), tile.queries.read(lse[row, part])
        _put(*into, part_out, part_lse[..., None], more=tile.more)
    return out, lse


@torch.library.custom_op("outrider::flash_tiles_backward", mutates_args=())
def _flash_tiles_backward(
    grad_BHTK: Tensor,
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTK: Tensor,
    out_BHTK: Tensor,
    lse_BHT1: Tensor,
    biases: Sequence[Tensor],
    numbers: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHTK, k_BGTK, v_BGTK))
    grad = grad_BHTK.contiguous()
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    for row, part, tile in _calls(q, k, biases, numbers):
        queries, keys = tile.queries, tile.keys
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            queries.read(grad[row, part]),
            queries.read(q[row, part]),
            keys.read(k[row]),
            keys.read(v[row]),
            queries.read(out_BHTK[row, part]),
            queries.read(lse_BHT1[row, part]).squeeze(-1),
            0.0,
            tile.causal,
            attn_mask=tile.keep,
        )
        queries.add(dq[row, part], grads[0])
        keys.add(dk[row], grads[1])
        keys.add(dv[row], grads[2])
    return dq, dk, dv


def _empty_result(q_BHTK: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q_BHTK.dtype, torch.float32)
    lse_BHT1 = q_BHTK.new_zeros((*q_BHTK.shape[:3], 1), dtype=wide)
    return torch.zeros_like(q_BHTK, memory_format=torch.contiguous_format), lse_BHT1


def _calls(
    q_BHTK: Tensor, k_BGTK: Tensor, biases: Sequence[Tensor], numbers: Sequence[int]
) -> Iterator[tuple[int, slice, Tile]]:
    """Yield kernel calls: a row, heads with distinct keys, and a tile of limited size."""
    groups, width = k_BGTK.shape[1], k_BGTK.shape[3]
    shared = q_BHTK.shape[1] // groups
    rest = iter(biases)
    for at in range(0, len(numbers), 15):
        grids, (masked, causal, more) = numbers[at : at + 12], numbers[at + 12 : at + 15]
        queries, keys = StridedRange(*grids[:6]), StridedRange(*grids[6:])
        bias = next(rest) if masked else None
        most = max(1, BUDGET // (groups * width * max(queries.size, keys.size)))
        for first in range(0, queries.sets, most):
            sets = min(most, queries.sets - first)
            now = queries.cut(first, sets), keys.cut(first, sets)
            tile = Tile(*now, bias, bool(causal), bool(more))
            for row in range(len(q_BHTK)):
                for head in range(shared):
                    yield row, slice(head, None, shared), tile


@_flash_tiles.register_fake
def _(
    q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, biases: Sequence[Tensor], numbers: Sequence[int]
) -> tuple[Tensor, Tensor]:
    return _empty_result(q_BHTK)


@_flash_tiles_backward.register_fake
def _(
    grad_BHTK: Tensor,
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTK: Tensor,
    out_BHTK: Tensor,
    lse_BHT1: Tensor,
    biases: Sequence[Tensor],
    numbers: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q_BHTK, k_BGTK, v_BGTK)
    )
    return dq, dk, dv


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *qkv, biases, ctx.numbers = inputs
    ctx.save_for_backward(*qkv, *output, *biases)


def _backward(ctx: Any, grad_BHTK: Tensor, _: Tensor) -> tuple[Any, ...]:
    q, k, v, out, lse, *biases = ctx.saved_tensors
    grads = _flash_tiles_backward(grad_BHTK, q, k, v, out, lse, biases, ctx.numbers)
    return *grads, [None] * len(biases), None


_flash_tiles.register_autograd(_backward, setup_context=_remember)


def _put(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor, *, more: bool) -> None:
    """Write the output of a tile, or merge it with the current one."""
    if not more:
        out.copy_(part)
        lse.copy_(part_lse)
        return
    both = torch.logaddexp(lse, part_lse)
    out.mul_((lse - both).exp_()).add_(part * (part_lse - both).exp_())
    lse.copy_(both)


def _by_matrix_products(
    q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, tiles: Sequence[Tile], dropout: float
) -> Tensor:
    """Compute the same by matrix products; all tiles of a query share one maximum."""
    k_BHTK, v_BHTK = (repeat_heads(x, q_BHTK.shape[1]) for x in (k_BGTK, v_BGTK))
    scored = [_score(q_BHTK, k_BHTK, tile) for tile in tiles]
    top_BHT1 = q_BHTK.new_full((*q_BHTK.shape[:3], 1), torch.finfo(q_BHTK.dtype).min)
    for tile, score_BHSQP in zip(tiles, scored, strict=True):
        at_N = tile.queries.positions(q_BHTK.device).flatten()
        best_BHN1 = score_BHSQP.detach().amax(-1, keepdim=True).flatten(2, 3)
        top_BHT1[:, :, at_N] = torch.maximum(top_BHT1[:, :, at_N], best_BHN1)
    above_BHTK, below_BHT1 = torch.zeros_like(v_BHTK), torch.zeros_like(top_BHT1)
    for tile, score_BHSQP in zip(tiles, scored, strict=True):
        at_SQ = tile.queries.positions(q_BHTK.device)
        weight_BHSQP = (score_BHSQP - _pick(top_BHT1, at_SQ)).exp()
        total_BHN1 = weight_BHSQP.sum(-1, keepdim=True).flatten(2, 3)
        below_BHT1 = below_BHT1.index_add(2, at_SQ.flatten(), total_BHN1)
        v_BHSPK = _pick(v_BHTK, tile.keys.positions(q_BHTK.device))
        sum_BHSQK = drop(weight_BHSQP, dropout, dropout > 0) @ v_BHSPK
        above_BHTK = above_BHTK.index_add(2, at_SQ.flatten(), sum_BHSQK.flatten(2, 3))
    return above_BHTK / below_BHT1.clamp(min=torch.finfo(below_BHT1.dtype).tiny)


def _score(q_BHTK: Tensor, k_BHTK: Tensor, tile: Tile) -> Tensor:
    q_BHSQK = _pick(q_BHTK, tile.queries.positions(q_BHTK.device)) * q_BHTK.shape[-1] ** -0.5
    k_BHSPK = _pick(k_BHTK, tile.keys.positions(q_BHTK.device))
    score_BHSQP = q_BHSQK @ k_BHSPK.transpose(-1, -2)
    keep = tile.keep
    if tile.causal:
        shape = score_BHSQP.shape[-2:]
        keep = torch.ones(shape, dtype=torch.bool, device=q_BHTK.device).tril()
    if keep is None:
        return score_BHSQP
    return score_BHSQP.masked_fill(~keep, torch.finfo(score_BHSQP.dtype).min)


def _pick(x_BHTK: Tensor, at_SP: Tensor) -> Tensor:
    return x_BHTK.index_select(2, at_SP.flatten()).view(*x_BHTK.shape[:2], *at_SP.shape, -1)
