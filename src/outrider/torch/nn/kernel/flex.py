"""Sparse attention on a GPU: FlexAttention over 128 x 128 blocks.

FlexAttention skips blocks of queries and keys, so it needs to know for every block whether any pair
is visible and whether all are. Evaluating `sees` for all T x T pairs costs more than the attention.
Here `sees` is evaluated once with ranges in place of positions (interval arithmetic), which gives
conservative bounds for all blocks at once. Only undecided blocks are evaluated pair by pair, and
only if there are few:

    i in [a, b], j in [c, d]    =>    i - j in [a - d, b - c], and so on through the predicate

Tested on a CPU: the blocks, for every variant, and the compiled forward pass with them. Not tested,
for lack of a GPU: the CUDA kernels, their backward pass, and the break-even point (`SHARE` is an
estimate).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128
"""Queries and keys of a block."""
SHARE = 0.25
"""FlexAttention is used if at most this share of all blocks must be computed."""
BLOCKS_AT_ONCE = 256
"""Blocks that are evaluated pair by pair at once."""

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Pattern(Protocol):
    """The visible keys of an attention's queries, equal for all heads."""

    @property
    def key(self) -> object:
        """Equal for attentions with the same pattern."""
        ...

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether query position i sees key position j."""
        ...


class Blocks(NamedTuple):
    """For every block, whether any pair is visible and whether all are, [Q, K] each."""

    some: Tensor
    every: Tensor

    @property
    def share(self) -> float:
        """Share of all blocks that must be computed."""
        return float(self.some.float().mean())


def attend(
    pattern: Pattern, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None
) -> Tensor | None:
    """Attend under `pattern`; None if that is not faster."""
    blocks = _blocks(_Keyed(pattern.key, pattern), q_BHTK.shape[2], q_BHTK.device)
    if blocks is None:
        return None
    mask = block_mask(pattern, blocks, q_BHTK.shape[2], keep_BT)
    grouped = q_BHTK.shape[1] != k_BGTK.shape[1]
    return cast(Tensor, _compiled()(q_BHTK, k_BGTK, v_BGTK, block_mask=mask, enable_gqa=grouped))


def block_mask(
    pattern: Pattern, blocks: Blocks, length: int, keep_BT: Tensor | None = None
) -> BlockMask:
    """Return the block mask of `length` tokens."""
    keyed = _Keyed(pattern.key, pattern)
    if keep_BT is None:
        partial, full = blocks.some & ~blocks.every, blocks.every
        return BlockMask.from_kv_blocks(
            *_listed(partial),
            *_listed(full),
            BLOCK_SIZE=BLOCK,
            mask_mod=_mask_mod(keyed),
            seq_lengths=(length, length),
        )
    inner = _mask_mod(keyed)

    def real(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return inner(b, h, i, j) & keep_BT[b, j]

    # Any block may contain padding, so no block counts as full.
    return BlockMask.from_kv_blocks(
        *_listed(blocks.some), BLOCK_SIZE=BLOCK, mask_mod=real, seq_lengths=(length, length)
    )


def find_blocks(
    pattern: Pattern, length: int, device: torch.device, *, most: float = 1.0
) -> Blocks | None:
    """Return the exact blocks of a pattern; None if a share above `most` may be visible."""
    bounds = _bounds(pattern, length, device)
    if bounds.share > most:
        return None
    some, every = bounds.some.clone(), bounds.every.clone()
    within = torch.arange(BLOCK, device=device)
    for pair_N2 in torch.split((some & ~every).nonzero(), BLOCKS_AT_ONCE):
        query, key = pair_N2.unbind(1)
        i = (query[:, None] * BLOCK + within)[:, :, None]
        j = (key[:, None] * BLOCK + within)[:, None, :]
        seen = pattern.sees(i, j) & (i < length) & (j < length)
        some[query, key], every[query, key] = seen.any((1, 2)), seen.all((1, 2))
    return Blocks(some, every)


def _bounds(pattern: Pattern, length: int, device: torch.device) -> Blocks:
    """Return an upper bound of `some` and a lower bound of `every`."""
    count = -(-length // BLOCK)
    first = torch.arange(count, device=device) * BLOCK
    last = (first + BLOCK - 1).clamp(max=length - 1)
    whole = first + BLOCK <= length
    everywhere = torch.ones(count, count, dtype=torch.bool, device=device)
    queries, keys = _Range(first[:, None], last[:, None]), _Range(first[None], last[None])
    try:
        truth = cast(Any, pattern.sees(cast(Any, queries), cast(Any, keys)))
    except (AttributeError, TypeError):  # an operation without interval arithmetic
        return Blocks(everywhere, ~everywhere)
    return Blocks(truth.some & everywhere, truth.every & whole[:, None] & whole)


def _listed(blocks_QK: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each block of queries, the number of key blocks and their indices first."""
    order = blocks_QK.int().argsort(dim=-1, descending=True, stable=True)
    return blocks_QK.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None]


@dataclass(frozen=True)
class _Keyed:
    """A pattern, compared and hashed by its key."""

    key: object
    pattern: Pattern = field(compare=False)


@lru_cache(maxsize=64)
def _blocks(keyed: _Keyed, length: int, device: torch.device) -> Blocks | None:
    blocks = find_blocks(keyed.pattern, length, device, most=SHARE)
    return blocks if blocks is not None and blocks.share <= SHARE else None


@lru_cache(maxsize=64)
def _mask_mod(keyed: _Keyed) -> MaskMod:
    """Return the mask function, cached because each new function is compiled anew."""

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return keyed.pattern.sees(i, j)

    return seen


@cache
def _compiled() -> Callable[..., object]:
    return cast(Callable[..., object], torch.compile(flex_attention))


@dataclass(frozen=True, eq=False)
class _Truth:
    """Truth of a predicate over many blocks: possible for some pair, certain for every pair."""

    some: Tensor
    every: Tensor

    def __and__(self, other: "_Truth") -> "_Truth":
        return _Truth(self.some & other.some, self.every & other.every)

    def __or__(self, other: "_Truth") -> "_Truth":
        return _Truth(self.some | other.some, self.every | other.every)

    def __invert__(self) -> "_Truth":
        return _Truth(~self.every, ~self.some)


class _Range:
    """An interval of positions, or of values computed from them."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high

    def __add__(self, other: "int | _Range") -> "_Range":
        other = _range(other)
        return _Range(self.low + other.low, self.high + other.high)

    __radd__ = __add__

    def __neg__(self) -> "_Range":
        return _Range(-self.high, -self.low)

    def __sub__(self, other: "int | _Range") -> "_Range":
        return self + -_range(other)

    def __rsub__(self, other: int) -> "_Range":
        return -self + other

    def __mul__(self, factor: int) -> "_Range":
        ends = (self.low * factor, self.high * factor)
        return _Range(*(ends if factor >= 0 else ends[::-1]))

    def __floordiv__(self, divisor: int) -> "_Range":
        return _Range(self.low // divisor, self.high // divisor)

    def __mod__(self, divisor: int) -> "_Range":
        same = self.low // divisor == self.high // divisor
        low = torch.where(same, self.low % divisor, 0)
        return _Range(low, torch.where(same, self.high % divisor, divisor - 1))

    def abs(self) -> "_Range":
        """Return the interval of absolute values."""
        nearest = torch.maximum(self.low, -self.high).clamp(min=0)
        return _Range(nearest, torch.maximum(-self.low, self.high))

    def __lt__(self, other: "int | _Range") -> _Truth:
        other = _range(other)
        return _Truth(self.low < other.high, self.high < other.low)

    def __le__(self, other: "int | _Range") -> _Truth:
        return self < _range(other) + 1

    def __gt__(self, other: "int | _Range") -> _Truth:
        return _range(other) < self

    def __ge__(self, other: "int | _Range") -> _Truth:
        return _range(other) <= self

    def __eq__(self, other: object) -> _Truth:  # type: ignore[override]
        other = _range(cast(Any, other))
        return (self <= other) & (self >= other)

    def __ne__(self, other: object) -> _Truth:  # type: ignore[override]
        return ~(self == other)

    __hash__ = None  # type: ignore[assignment]


def _range(value: "int | _Range") -> _Range:
    if isinstance(value, int):
        exact = torch.tensor(value)
        return _Range(exact, exact)
    if not isinstance(value, _Range):
        raise TypeError("ranges combine with integers and ranges only")
    return value
