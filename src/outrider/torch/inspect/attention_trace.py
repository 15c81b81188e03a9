"""Which pairs of queries and keys an attention really multiplies, traced while it runs.

Four columns of every query and key encode where it comes from: `mark (1, x, x^2, h)` for position x
and head h. However an attention slices, sorts, scales or pads them, the ratios of these columns
survive, so the operands of every matrix product show which positions are multiplied. The marks are
too small beside the other columns to change the result.

The weights an attention gives, read off its own reference.

    y = W v,  so  v = the unit vectors gives  y = W

Every attention is linear in its values, whatever its pattern, score or normaliser. So nothing has
to be written a second time: unit vectors go in as values, a few columns at a time because an
attention may count on values as wide as its queries, and the weights come out.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.torch.nn.attention import AttentionBase
from outrider.torch.nn.layer.heads import CrossAttention, Source

__all__ = [
    "Product",
    "computed_pairs",
    "cross_weights",
    "marked_heads",
    "runs_dense",
    "self_weights",
]

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
    """The kernel itself leaves out what lies ahead."""


class _Dense(Exception):  # noqa: N818 - ends a run early, no error
    """One product holds every query and every key."""


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
    """Return the pairs the fast path multiplies, [H, T, T]; None where none could be followed."""
    q, k, v = marked_heads(attention, length, seed=seed)
    with _Products(length) as products:
        attention(q, k, v)
    if not products.found:
        return None
    pairs_HTT = torch.zeros(attention.shape.heads, length, length, dtype=torch.bool)
    for product in products.found:
        _note(pairs_HTT, product)
    return pairs_HTT


@torch.no_grad()
def runs_dense(attention: AttentionBase, length: int) -> bool:
    """Whether a whole pass of this length is one product of everything with everything."""
    q, k, v = marked_heads(attention, length)
    try:
        with _Products(length, stop_at_dense=True):
            attention(q, k, v)
    except _Dense:
        return True
    return False


def _note(pairs_HTT: Tensor, product: Product) -> None:
    """Mark what one product multiplied, block by block to bound the memory."""
    blocks = zip(product.head_NT, product.query_NT, product.key_NS, strict=True)
    for head_T, query_T, key_S in blocks:
        real_T = query_T >= 0
        head_T, query_T, key_S = head_T[real_T], query_T[real_T], key_S[key_S >= 0]
        met_TS = torch.ones(len(query_T), len(key_S), dtype=torch.bool)
        if product.causal:
            met_TS = met_TS.tril(len(key_S) - len(query_T))
        at = (head_T[:, None], query_T[:, None], key_S[None])
        pairs_HTT[at] = pairs_HTT[at] | met_TS


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every product of marked queries with marked keys."""

    def __init__(self, length: int, *, stop_at_dense: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = length
        self.stop_at_dense = stop_at_dense
        self.found: list[Product] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at the operands of a product, then let it happen."""
        kwargs = kwargs or {}
        if func is aten._scaled_dot_product_flash_attention_for_cpu.default:
            causal = bool(args[4]) if len(args) > 4 else bool(kwargs.get("is_causal", False))
            self._look(args[0], args[1], causal)
        elif func in (aten.bmm.default, aten.mm.default):
            self._look(args[0], args[1].transpose(-1, -2), False)
        elif func is aten.baddbmm.default:
            self._look(args[1], args[2].transpose(-1, -2), False)
        elif func.namespace == "outrider":
            # An operator of our own is made of others: run its kernel where they can be seen.
            with self:
                return func.redispatch(ON_CPU, *args, **kwargs)
        return func(*args, **kwargs)

    def _look(self, q: Tensor, k: Tensor, causal: bool) -> None:
        q, k = (x.reshape(-1, *x.shape[-2:]) for x in (q, k))
        queries, keys = _read(q, self.length), _read(k, self.length)
        if queries is None or keys is None:
            return
        if self.stop_at_dense and min(q.shape[1], k.shape[1]) >= self.length:
            raise _Dense
        if len(k) != len(q):  # key heads shared by several query heads
            keys = tuple(x.repeat_interleave(len(q) // len(k), dim=0) for x in keys)
        self.found.append(Product(queries[0], queries[1], keys[1], causal))


def _read(x_NTK: Tensor, length: int) -> tuple[Tensor, ...] | None:
    """Return the head and position of every row, [N, T] each; None where there are no marks."""
    if x_NTK.shape[-1] < 4 or not x_NTK.is_floating_point():
        return None
    one, x, square, head = x_NTK[..., :4].double().unbind(-1)
    empty = one == 0
    one = one.masked_fill(empty, 1.0)
    x, square, head = x / one, square / one, head / one
    place = x * length
    wrong = (square - x**2).abs() + (place - place.round()).abs() + (head - head.round()).abs()
    if empty.all() or (wrong > TOLERANCE * length).masked_fill(empty, False).any():
        return None
    return tuple((y.round().long() - 1).masked_fill(empty, -1) for y in (head, place))


@torch.no_grad()
def self_weights(
    attention: AttentionBase, q_BHTK: Tensor, k_BGTK: Tensor, *, keep_BT: Tensor | None = None
) -> Tensor:
    """Return the weight of every key for every query and head, [B, H, T, T], of a whole pass."""
    batch, groups, length, width = k_BGTK.shape
    unit_TT = torch.eye(length, dtype=k_BGTK.dtype, device=k_BGTK.device)
    columns = []
    for start in range(0, length, width):
        v_BGTK = torch.zeros_like(k_BGTK)
        part = unit_TT[:, start : start + width]
        v_BGTK[..., : part.shape[1]] = part.expand(batch, groups, -1, -1)
        columns.append(attention.reference(q_BHTK, k_BGTK, v_BGTK, keep_BT=keep_BT))
    return torch.cat(columns, dim=-1)[..., :length]


@torch.no_grad()
def cross_weights(cross: CrossAttention, x_BTD: Tensor, source: Source) -> Tensor:
    """Return the weight of every source token for every target token and head, [B, H, T, S]."""
    q_BHTK = cross.q(x_BTD).unflatten(-1, (cross.heads, cross.head_width)).transpose(1, 2)
    k_BHSK = source.k_BHSK
    unit_SS = torch.eye(k_BHSK.shape[2], dtype=k_BHSK.dtype, device=k_BHSK.device)
    return cross.attend(q_BHTK, source._replace(v_BHSK=unit_SS.expand(*k_BHSK.shape[:2], -1, -1)))
