"""The KV cache: keys and values of the tokens each row has taken in, preallocated and ragged.

Every row has its own length. Growing writes into free slots, rolling back lowers a length; nothing
is cropped or concatenated, and no row waits for another. Token `p` of a row lives in slot
`p mod C`. A cache with room for all tokens (C = capacity) never wraps; a pattern that looks back
over a window of W tokens asks for C = W - 1 + `SLACK` slots and wraps around.

Why `SLACK`: token p overwrites token p - C. An extend of m <= SLACK tokens from length L reaches
p = L + m - 1, so it overwrites tokens up to L - W at most, and those no later query sees, not even
after all m are rolled back. Whoever will extend by longer blocks asks for more (`CacheSpec.slack`).
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
"""Most tokens one extend may add to a cache that wraps, and so the longest rollback, unless its
room has more."""


class CacheSpec(NamedTuple):
    """What a cache must hold at most, and how."""

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
    """Most tokens one extend may add where the cache wraps."""

    def widen(self, slots: int) -> int:
        """Return the slots of a cache that needs so many with a slack of `SLACK`."""
        return min(self.capacity, slots + self.slack - SLACK)


class Cache(Protocol):
    """The KV cache of one layer. How it is written and read is its attention's business."""

    @property
    def wraps(self) -> bool:
        """Old tokens are overwritten: no extend may be longer than the slack of its room."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        ...

    def select(self, row_N: Tensor, used: int) -> None:
        """Reorder, drop or copy rows; no row holds more than `used` tokens."""
        ...

    def join(self, other: Any, place_N: Tensor, rows: int) -> None:
        """Put the rows of a cache of the same layer at these places, `rows` there are then.

        Its room may be another: the larger of both is what there is then.
        """
        ...


class Pattern(Protocol):
    """What a step needs to know of an attention: which keys a query sees."""

    @property
    def key(self) -> object:
        """Equal for two attentions with the same pattern, so that they share one plan."""
        ...

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether query position i sees key position j."""
        ...


class SlotPlan(NamedTuple):
    """Where new tokens are written in a cache, and what their queries may read."""

    write: int | Tensor
    """First slot of a run shared by all rows, or a slot per row and token, [B, T]."""
    read: int
    """The first `read` slots hold everything that can be seen."""
    keep: Tensor | None
    """[B or 1, 1, T, read]; None where every query sees every slot read."""


class Step:
    """The tokens of one extend: their positions, and the slots they take in each kind of cache.

    Worked out once and shared by all layers.
    """

    def __init__(
        self, lengths: Sequence[int], tokens: int, counts: Sequence[int], device: torch.device
    ):
        self.tokens = tokens
        self.fresh = not any(lengths)
        """No row holds anything yet: the whole pass is the step."""
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
        """Return where the new tokens go in a cache of `size` slots under `pattern`."""
        return self.plan((pattern.key, size), lambda: self._plan(pattern, size))

    def plan(self, key: object, make: Callable[[], SlotPlan]) -> SlotPlan:
        """Return what `make` makes; layers that ask with the same key share it."""
        if key not in self._plans:
            self._plans[key] = make()
        return self._plans[key]

    def places(self, size: int) -> int | Tensor:
        """Return the slots of the new tokens in a cache of `size` slots, as in `SlotPlan.write`."""
        if self._uniform and self.positions.end <= size:
            return self._lengths[0]
        return (self.positions.index_BT % size).expand(len(self._lengths), -1)

    def held(self, size: int) -> Tensor:
        """Return which token each slot holds after this step: [B or 1, C], negative where empty."""
        return _held(self.positions.index_BT[:, -1:], size, self.device)

    def newest(self, size: int) -> Tensor:
        """Return, for a first fill, which token each slot holds: [B, C], negative where empty."""
        last_B1 = torch.tensor(self._counts, device=self.device)[:, None] - 1
        return _held(last_B1, size, self.device)

    def _plan(self, pattern: Pattern, size: int) -> SlotPlan:
        end = self.positions.end
        read = min(end, size)
        write = self.places(size)
        if isinstance(write, int) and self.tokens == 1 and self._sees_all(pattern, read):
            return SlotPlan(write, read, None)
        if end <= size:
            held_BC = torch.arange(read, device=self.device)[None]
        else:
            held_BC = self.held(size)[:, :read]
        i, j = self.positions.index_BT[:, :, None], held_BC[:, None, :]
        keep_BTC = pattern.sees(i, j) & (j >= 0) & (j <= i)
        return SlotPlan(write, read, keep_BTC[:, None])

    def _sees_all(self, pattern: Pattern, read: int) -> bool:
        # One query: it sees every key exactly when it sees the oldest, for every causal window.
        i = self.positions.index_BT[:, :, None]
        j = torch.arange(read, device=self.device)[None, None]
        return bool(pattern.sees(i, j).all())


class LayerCache:
    """Keys and values of one layer: [B, G, C, K] each."""

    def __init__(self, spec: CacheSpec, slots: int) -> None:
        """Make an empty cache of `slots` slots; fewer than the room's capacity wrap around."""
        shape = (spec.rows, spec.heads, slots, spec.width)
        self.k_BGCK = torch.zeros(shape, dtype=spec.dtype, device=spec.device)
        self.v_BGCK = torch.zeros(shape, dtype=spec.dtype, device=spec.device)
        self.wraps = slots < spec.capacity

    @property
    def size(self) -> int:
        """SlotPlan per row."""
        return self.k_BGCK.shape[2]

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return self.k_BGCK.nbytes + self.v_BGCK.nbytes

    def write(self, k_BGTK: Tensor, v_BGTK: Tensor, slots: SlotPlan) -> tuple[Tensor, Tensor]:
        """Store new keys and values; return everything readable, [B, G, read, K] each."""
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
        """Store a first pass of any length, keeping of each row the newest tokens that fit."""
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
        """Reorder, drop or copy rows; only the first `used` slots hold anything."""
        rows, used = len(row_N), min(used, self.size)
        self.k_BGCK = _select(self.k_BGCK, row_N, rows, used)
        self.v_BGCK = _select(self.v_BGCK, row_N, rows, used)

    def join(self, other: Self, place_N: Tensor, rows: int) -> None:
        """Put the rows of another cache at these places.

        While a cache does not wrap, token p lies in slot p however many slots there are.
        """
        self.k_BGCK = join_rows(self.k_BGCK, other.k_BGCK, place_N, rows)
        self.v_BGCK = join_rows(self.v_BGCK, other.v_BGCK, place_N, rows)
        self.wraps = self.wraps or other.wraps


def join_rows(ours: Tensor, theirs: Tensor, place_N: Tensor, rows: int, fill: int = 0) -> Tensor:
    """Put rows of one tensor into another at these places, and return that, `rows` long.

    It stays where it is, unless it must grow: by rows, or because theirs are larger in some other
    way. What nobody had is `fill`.
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


def _held(last_B1: Tensor, size: int, device: torch.device) -> Tensor:
    """Token held by each slot when token `last` is the newest: last - ((last - slot) mod size)."""
    slot_C = torch.arange(size, device=device)
    return last_B1 - (last_B1 - slot_C) % size
