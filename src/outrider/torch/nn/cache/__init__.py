"""The KV cache: keys and values of all tokens of each row, preallocated and ragged.

Every row has its own length. Growing writes into free slots; rolling back lowers a length. Nothing
is cropped or concatenated. Token `p` of a row is in slot `p mod C`. A cache for all tokens
(C = capacity) never wraps; a pattern with a window of W tokens uses W - 1 + `SLACK` slots and
wraps around.

Why `SLACK`: token p overwrites token p - C. An extend of m <= SLACK tokens from length L reaches
p = L + m - 1, so it overwrites tokens up to L - W at most, and no later query sees those, even
after a rollback of all m. Longer extends need more slack (`CacheSpec.slack`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from outrider.torch.nn.position import Positions

__all__ = [
    "NO_POSITION",
    "SLACK",
    "Cache",
    "CacheSpec",
    "LayerCache",
    "Pattern",
    "SlotPlan",
    "Step",
    "join_rows",
]

NO_POSITION = 1 << 40
"""Position of an empty slot: after all real ones, so it counts as rolled back."""
SLACK = 64
"""Longest extend of a cache that wraps, and so the longest rollback, unless its spec sets more."""


class CacheSpec(NamedTuple):
    """Size and number type of a cache."""

    rows: int
    capacity: int
    """Tokens of the longest row."""
    heads: int
    """Key-value heads."""
    width: int
    """Numbers in a key or value."""
    dtype: torch.dtype
    device: torch.device
    slack: int = SLACK
    """Longest extend if the cache wraps."""

    def widen(self, slots: int) -> int:
        """Return the slots for this slack of a cache that needs `slots` with a slack of `SLACK`."""
        return min(self.capacity, slots + self.slack - SLACK)


class Cache(Protocol):
    """The KV cache of one layer, written and read by its attention."""

    @property
    def wraps(self) -> bool:
        """Whether old tokens are overwritten, so that an extend is limited to the slack."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        ...

    def select(self, row_N: Tensor, used: int) -> None:
        """Reorder, drop or copy rows; no row has more than `used` tokens."""
        ...

    def join(self, other: Any, place_N: Tensor, rows: int) -> None:
        """Write the rows of a cache of the same layer to these indices of `rows` rows.

        The capacity becomes the larger of both.
        """
        ...


class Pattern(Protocol):
    """The visible keys of an attention's queries."""

    @property
    def key(self) -> object:
        """Equal for attentions with the same pattern, so that they share one plan."""
        ...

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether query position i sees key position j."""
        ...


class SlotPlan(NamedTuple):
    """Slots where new tokens are written, and slots their queries read."""

    write: int | Tensor
    """First slot of a range shared by all rows, or a slot per row and token, [B, T]."""
    read: int
    """The first `read` slots hold all visible tokens."""
    keep: Tensor | None
    """[B or 1, 1, T, read]; None if every query sees every slot read."""


class Step:
    """The tokens of one extend: their positions, and their slots in each kind of cache.

    Computed once and shared by all layers.
    """

    def __init__(
        self, lengths: Sequence[int], tokens: int, counts: Sequence[int], device: torch.device
    ):
        self.tokens = tokens
        self.fresh = not any(lengths)
        """No row has tokens yet."""
        self.device = device
        self._lengths = lengths
        self._counts = counts
        self._uniform = all(n == lengths[0] for n in lengths)
        self._plans: dict[object, SlotPlan] = {}
        start_B1 = torch.tensor([lengths[0]] if self._uniform else lengths, device=device)[:, None]
        self.positions = Positions(
            start_B1 + torch.arange(tokens, device=device),
            max(lengths) + tokens,
            max(map(sum, zip(lengths, counts, strict=True))),
        )

    def slots(self, pattern: Pattern, size: int) -> SlotPlan:
        """Return the slots of the new tokens in a cache of `size` slots under `pattern`."""
        return self.plan((pattern.key, size), lambda: self._plan(pattern, size))

    def plan(self, key: object, make: Callable[[], SlotPlan]) -> SlotPlan:
        """Return the result of `make`, cached by key across layers."""
        if key not in self._plans:
            self._plans[key] = make()
        return self._plans[key]

    def places(self, size: int) -> int | Tensor:
        """Return the slots of the new tokens in a cache of `size` slots, as in `SlotPlan.write`."""
        if self._uniform and self.positions.end <= size:
            return self._lengths[0]
        return (self.positions.index_BT % size).expand(len(self._lengths), -1)

    def tokens_in_slots(self, size: int) -> Tensor:
        """Return the token in each slot after this step: [B or 1, C], negative where empty."""
        return _tokens_in_slots(self.positions.index_BT[:, -1:], size, self.device)

    def newest(self, size: int) -> Tensor:
        """Return the token in each slot after a first fill: [B, C], negative where empty."""
        last_B1 = torch.tensor(self._counts, device=self.device)[:, None] - 1
        return _tokens_in_slots(last_B1, size, self.device)

    def _plan(self, pattern: Pattern, size: int) -> SlotPlan:
        end = self.positions.end
        read = min(end, size)
        write = self.places(size)
        if isinstance(write, int) and self.tokens == 1 and self._sees_all(pattern, read):
            return SlotPlan(write, read, None)
        if end <= size:
            token_BC = torch.arange(read, device=self.device)[None]
        else:
            token_BC = self.tokens_in_slots(size)[:, :read]
        i, j = self.positions.index_BT[:, :, None], token_BC[:, None, :]
        keep_BTC = pattern.sees(i, j) & (j >= 0) & (j <= i)
        return SlotPlan(write, read, keep_BTC[:, None])

    def _sees_all(self, pattern: Pattern, read: int) -> bool:
        # With one query: for a causal window, all keys are visible if the oldest is.
        i = self.positions.index_BT[:, :, None]
        j = torch.arange(read, device=self.device)[None, None]
        return bool(pattern.sees(i, j).all())


class LayerCache:
    """Keys and values of one layer: [B, G, C, K] each."""

    def __init__(self, spec: CacheSpec, slots: int) -> None:
        """Create an empty cache of `slots` slots; it wraps if these are fewer than the capacity."""
        shape = (spec.rows, spec.heads, slots, spec.width)
        self.k_BGCK = torch.zeros(shape, dtype=spec.dtype, device=spec.device)
        self.v_BGCK = torch.zeros(shape, dtype=spec.dtype, device=spec.device)
        self.wraps = slots < spec.capacity

    @property
    def size(self) -> int:
        """Slots per row."""
        return self.k_BGCK.shape[2]

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.k_BGCK.nbytes + self.v_BGCK.nbytes

    def write(self, k_BGTK: Tensor, v_BGTK: Tensor, slots: SlotPlan) -> tuple[Tensor, Tensor]:
        """Store new keys and values; return all readable ones, [B, G, read, K] each."""
        if isinstance(slots.write, int):
            end = slots.write + k_BGTK.shape[2]
            self.k_BGCK[:, :, slots.write : end] = k_BGTK
            self.v_BGCK[:, :, slots.write : end] = v_BGTK
        else:
            index = slots.write[:, None, :, None].expand_as(k_BGTK)
            self.k_BGCK.scatter_(2, index, k_BGTK)
            self.v_BGCK.scatter_(2, index, v_BGTK)
        return self.k_BGCK[:, :, : slots.read], self.v_BGCK[:, :, : slots.read]

    def fill(self, k_BGTK: Tensor, v_BGTK: Tensor, step: Step) -> None:
        """Store a first pass of any length; the newest tokens of each row that fit."""
        tokens = k_BGTK.shape[2]
        if tokens <= self.size:
            self.k_BGCK[:, :, :tokens] = k_BGTK
            self.v_BGCK[:, :, :tokens] = v_BGTK
            return
        index = step.newest(self.size).clamp(min=0)[:, None, :, None]
        index = index.expand(*k_BGTK.shape[:2], -1, k_BGTK.shape[3])
        self.k_BGCK.copy_(k_BGTK.gather(2, index))
        self.v_BGCK.copy_(v_BGTK.gather(2, index))

    def select(self, row_N: Tensor, used: int) -> None:
        """Reorder, drop or copy rows; only the first `used` slots are in use."""
        rows, used = len(row_N), min(used, self.size)
        self.k_BGCK = _select(self.k_BGCK, row_N, rows, used)
        self.v_BGCK = _select(self.v_BGCK, row_N, rows, used)

    def join(self, other: Self, place_N: Tensor, rows: int) -> None:
        """Write the rows of another cache to these indices.

        While a cache does not wrap, token p is in slot p for any number of slots.
        """
        self.k_BGCK = join_rows(self.k_BGCK, other.k_BGCK, place_N, rows)
        self.v_BGCK = join_rows(self.v_BGCK, other.v_BGCK, place_N, rows)
        self.wraps = self.wraps or other.wraps


def join_rows(ours: Tensor, theirs: Tensor, place_N: Tensor, rows: int, fill: int = 0) -> Tensor:
    """Write rows of one tensor to these indices of another, and return that, with `rows` rows.

    `ours` is modified in place unless it must grow: by rows, or because `theirs` is larger in
    another dimension. New elements are `fill`.
    """
    inner = [max(sizes) for sizes in zip(ours.shape[1:], theirs.shape[1:], strict=True)]
    dtype = torch.promote_types(ours.dtype, theirs.dtype)
    if list(ours.shape) != [rows, *inner] or ours.dtype != dtype:
        grown = ours.new_full((rows, *inner), fill, dtype=dtype)
        grown[tuple(slice(size) for size in ours.shape)] = ours
        ours = grown
    if list(theirs.shape[1:]) != inner:
        whole = theirs.new_full((len(theirs), *inner), fill)
        whole[tuple(slice(size) for size in theirs.shape)] = theirs
        theirs = whole
    ours[place_N] = theirs.to(dtype)
    return ours


def _select(store_BGCK: Tensor, row_N: Tensor, rows: int, used: int) -> Tensor:
    picked = store_BGCK[:, :, :used].index_select(0, row_N)
    if rows > store_BGCK.shape[0]:
        store_BGCK = store_BGCK.new_zeros(rows, *store_BGCK.shape[1:])
    store_BGCK[:rows, :, :used] = picked
    return store_BGCK[:rows]


def _tokens_in_slots(last_B1: Tensor, size: int, device: torch.device) -> Tensor:
    """Return the token in each slot if `last` is the newest: last - ((last - slot) mod size)."""
    slot_C = torch.arange(size, device=device)
    return last_B1 - (last_B1 - slot_C) % size
