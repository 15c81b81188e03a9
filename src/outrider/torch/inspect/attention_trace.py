"""Pairs of queries and keys that an attention computes, and the weights it gives.

`computed_pairs`: four columns of every query and key encode its origin, `mark (1, x, x^2, h)` for
position x and head h. The ratios of these columns survive slicing, sorting, scaling and padding, so
the operands of every matrix product show which positions are multiplied. The marks are too small to
change the result.

`self_weights`: every attention is linear in its values, y = W v, so unit vectors as values give W.
They are passed a few columns at a time, because an attention may require values as wide as its
queries.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.torch.nn.attention import AttentionBase

MARK = 1e-4
TOLERANCE = 1e-6
ON_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
aten = torch.ops.aten


class Product(NamedTuple):
    """One call of a kernel: N blocks of queries, each against a block of keys; -1 is padding."""

    head_NT: Tensor
    query_NT: Tensor
    key_NS: Tensor
    causal: bool
    """Whether the kernel masks later keys."""


class _Dense(Exception):  # noqa: N818 - control flow, not an error
    """A single product holds every query and every key."""


def marked_heads(attention: AttentionBase, length: int, *, seed: int = 0) -> tuple[Tensor, ...]:
    """Return random queries, keys and values with marks, [1, H or G, T, K] in float64."""
    generator = torch.Generator().manual_seed(seed)
    shape = attention.shape
    x_T = (torch.arange(length, dtype=torch.float64) + 1) / length
    made = []
    for heads in (shape.heads, shape.kv_heads, shape.kv_heads):
        x_BHTK = torch.randn(
            1, heads, length, shape.width, dtype=torch.float64, generator=generator
        )
        head_H1 = torch.arange(1, heads + 1, dtype=torch.float64)[:, None]
        marks = (torch.ones_like(x_T), x_T, x_T**2, head_H1)
        for column, mark in enumerate(marks):
            x_BHTK[..., column] = MARK * mark
        made.append(x_BHTK)
    return tuple(made)


@torch.no_grad()
def computed_pairs(attention: AttentionBase, length: int, *, seed: int = 0) -> Tensor | None:
    """Return the pairs the fast path multiplies, [H, T, T]; None if no product was traced."""
    q, k, v = marked_heads(attention, length, seed=seed)
    with _Products(length) as products:
        attention(q, k, v)
    if not products.traced:
        return None
    pairs_HTT = torch.zeros(attention.shape.heads, length, length, dtype=torch.bool)
    for product in products.traced:
        _add_pairs(pairs_HTT, product)
    return pairs_HTT


@torch.no_grad()
def runs_dense(attention: AttentionBase, length: int) -> bool:
    """Whether a pass of this length is a single product of all queries and keys."""
    q, k, v = marked_heads(attention, length)
    try:
        with _Products(length, stop_at_dense=True):
            attention(q, k, v)
    except _Dense:
        return True
    return False


def _add_pairs(pairs_HTT: Tensor, product: Product) -> None:
    """Add the pairs of one product, block by block to limit the memory."""
    blocks = zip(product.head_NT, product.query_NT, product.key_NS, strict=True)
    for head_T, query_T, key_S in blocks:
        real_T = query_T >= 0
        head_T, query_T, key_S = head_T[real_T], query_T[real_T], key_S[key_S >= 0]
        multiplied_TS = torch.ones(len(query_T), len(key_S), dtype=torch.bool)
        if product.causal:
            multiplied_TS = multiplied_TS.tril(len(key_S) - len(query_T))
        at = (head_T[:, None], query_T[:, None], key_S[None])
        pairs_HTT[at] = pairs_HTT[at] | multiplied_TS


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Traces every product of marked queries with marked keys."""

    def __init__(self, length: int, *, stop_at_dense: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = length
        self.stop_at_dense = stop_at_dense
        self.traced: list[Product] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten._scaled_dot_product_flash_attention_for_cpu.default:
            causal = bool(args[4]) if len(args) > 4 else bool(kwargs.get("is_causal", False))
            self._trace(args[0], args[1], causal)
        elif func in (aten.bmm.default, aten.mm.default):
            self._trace(args[0], args[1].transpose(-1, -2), False)
        elif func is aten.baddbmm.default:
            self._trace(args[1], args[2].transpose(-1, -2), False)
        elif func.namespace == "outrider":
            # Trace the operators inside the kernel of a custom operator.
            with self:
                return func.redispatch(ON_CPU, *args, **kwargs)
        return func(*args, **kwargs)

    def _trace(self, q: Tensor, k: Tensor, causal: bool) -> None:
        q, k = (x.reshape(-1, *x.shape[-2:]) for x in (q, k))
        queries, keys = _read(q, self.length), _read(k, self.length)
        if queries is None or keys is None:
            return
        if self.stop_at_dense and min(q.shape[1], k.shape[1]) >= self.length:
            raise _Dense
        if len(k) != len(q):  # key heads shared by several query heads
            keys = tuple(x.repeat_interleave(len(q) // len(k), dim=0) for x in keys)
        self.traced.append(Product(queries[0], queries[1], keys[1], causal))


def _read(x_NTK: Tensor, length: int) -> tuple[Tensor, ...] | None:
    """Return the head and position of every row, [N, T] each; None without marks."""
    if x_NTK.shape[-1] < 4 or not x_NTK.is_floating_point():
        return None
    mark, x, square, head = x_NTK[..., :4].double().unbind(-1)
    unmarked = mark == 0
    mark = mark.masked_fill(unmarked, 1.0)
    x, square, head = x / mark, square / mark, head / mark
    place = x * length
    error = (square - x**2).abs() + (place - place.round()).abs() + (head - head.round()).abs()
    if unmarked.all() or (error > TOLERANCE * length).masked_fill(unmarked, False).any():
        return None
    return tuple((y.round().long() - 1).masked_fill(unmarked, -1) for y in (head, place))


@torch.no_grad()
def self_weights(
    attention: AttentionBase, q_BHTK: Tensor, k_BGTK: Tensor, *, keep_BT: Tensor | None = None
) -> Tensor:
    """Return the weights of every query and head over all keys, [B, H, T, T]."""
    batch, groups, length, width = k_BGTK.shape
    unit_TT = torch.eye(length, dtype=k_BGTK.dtype, device=k_BGTK.device)
    columns = []
    for start in range(0, length, width):
        v_BGTK = torch.zeros_like(k_BGTK)
        part = unit_TT[:, start : start + width]
        v_BGTK[..., : part.shape[1]] = part.expand(batch, groups, -1, -1)
        columns.append(attention.reference(q_BHTK, k_BGTK, v_BGTK, keep_BT=keep_BT))
    return torch.cat(columns, dim=-1)[..., :length]
