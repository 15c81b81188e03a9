"""The decoding state: a cache per layer, the encoded source, and a length per row."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from outrider.torch.nn.cache import SLACK, Cache, Step, join_rows
from outrider.torch.nn.cache.ring import Ring
from outrider.torch.nn.layer.heads import Source

MASKED_BLOCK = 1024
"""Longest extend of rows that are not empty; bounds the mask."""


class AttachedDrafter(Protocol):
    """A drafter that reads the target's layer outputs for every token of this state."""

    def take_in(self, seen: Sequence[Tensor], state: "DecoderState", step: Step) -> None:
        """Store the outputs of the target's layers for the tokens of this step."""
        ...


class Recent(NamedTuple):
    """The target's states for the tokens of the last extend, for a drafter."""

    states_BTE: Tensor
    starts: list[int]
    """Position of the first of these tokens in each row."""
    before_BE: Tensor
    """The state before them."""

    def at_end(self, lengths: Sequence[int]) -> Tensor:
        """Return the state of each row's last token, [B, E]."""
        index = [length - start - 1 for length, start in zip(lengths, self.starts, strict=True)]
        if index[0] >= 0 and all(i == index[0] for i in index):
            return self.states_BTE[:, index[0]]
        index_B = torch.tensor(index, device=self.states_BTE.device)
        row_B = torch.arange(len(index), device=index_B.device)
        state_BE = self.states_BTE[row_B, index_B.clamp(min=0)]
        return torch.where((index_B >= 0)[:, None], state_BE, self.before_BE)

    def select(self, rows: Sequence[int], row_N: Tensor) -> "Recent":
        """Drop, reorder or copy rows."""
        return Recent(
            self.states_BTE.index_select(0, row_N),
            [self.starts[row] for row in rows],
            self.before_BE.index_select(0, row_N),
        )

    def emptied(self, rows: int) -> "Recent":
        """Return the states of `rows` empty rows."""
        width = self.before_BE.shape[1]
        before_BE = self.before_BE.new_zeros(rows, width)
        return Recent(before_BE[:, None], [0] * rows, before_BE)

    def join(self, other: "Recent", at: Sequence[int], place_N: Tensor, rows: int) -> "Recent":
        """Write the rows of another object to these indices."""
        return Recent(
            join_rows(self.states_BTE, other.states_BTE, place_N, rows),
            _write_at(self.starts, other.starts, at),
            join_rows(self.before_BE, other.before_BE, place_N, rows),
        )


class DecoderState:
    """Implements `decoding.protocol.State` for PyTorch models.

    Lengths are on the host: decoding needs them there, and reading them from a GPU would stall it.
    """

    def __init__(
        self,
        caches: list[Cache],
        sources: Sequence[Source | None],
        *,
        lengths: list[int],
        capacity: int,
        device: torch.device,
        beams: int = 1,
        slack: int = SLACK,
    ) -> None:
        self.caches = caches
        self.sources = list(sources)
        self.capacity = capacity
        self.device = device
        self.beams = beams
        self.slack = slack
        """Longest extend that can be rolled back in any cache."""
        self.spare = 0
        """Part of the capacity reserved for the padding of shorter rows."""
        self.drafter: AttachedDrafter | None = None
        self.drafter_caches: list[Cache] = []
        self.drafter_sources: list[Source | None] = []
        self.recent: Recent | None = None
        self.memory_BSD: Tensor | None = None
        """The encoder's output, kept for parallel decoding."""
        self.keep_BS: Tensor | None = None
        self.ring: Ring | None = None
        """The newest embeddings of models with `position_mlp`."""
        self._lengths = lengths
        self._before = list(lengths)
        self._inference = torch.is_inference_mode_enabled()
        """Whether the tensors were created in inference mode, and can only be changed there."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self._lengths)

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each row."""
        return self._lengths

    @property
    def length_B(self) -> Tensor:
        """Cached tokens of each row."""
        return torch.tensor(self._lengths, device=self.device)

    @property
    def nbytes(self) -> int:
        """Memory of the caches in bytes."""
        ring = 0 if self.ring is None else self.ring.nbytes
        return ring + sum(cache.nbytes for cache in [*self.caches, *self.drafter_caches])

    @property
    def block(self) -> int:
        """Longest step: unlimited for a first pass, later limited by slack and mask."""
        if not any(self._lengths):
            return self.capacity
        wraps = self.ring is not None and self.ring.wraps
        wraps = wraps or any(cache.wraps for cache in self.caches)
        return self.slack if wraps else max(self.slack, MASKED_BLOCK)

    def step(self, tokens: int, counts: Sequence[int]) -> Step:
        """Plan an extend by `tokens` tokens, of which `counts` are real."""
        longest = max(map(sum, zip(self._lengths, counts, strict=True)))
        limit = self.capacity - self.spare
        if longest > limit or max(self._lengths) + tokens > self.capacity:
            raise ValueError(f"{longest} tokens do not fit a state opened for {limit}")
        return Step(self._lengths, tokens, counts, self.device)

    def advance(self, counts: Sequence[int]) -> None:
        """Add the counts of new tokens to the lengths."""
        self._before = self._lengths
        self._lengths = [old + new for old, new in zip(self._lengths, counts, strict=True)]

    def rollback(self, lengths: Sequence[int]) -> None:
        """Drop the newest tokens of each row, at most those of the last extend."""
        lengths = [int(length) for length in lengths]
        bounds = zip(self._before, lengths, self._lengths, strict=True)
        if not all(low <= length <= high for low, length, high in bounds):
            raise ValueError("rollback may only undo tokens of the last extend")
        self._lengths = lengths

    def select(self, rows: Sequence[int]) -> None:
        """Drop, reorder or copy rows; rows of one source stay adjacent."""
        rows = [int(row) for row in rows]
        groups = [row // self.beams for row in rows[:: self.beams]]
        same = groups == list(range(len(self._lengths) // self.beams))
        with torch.inference_mode(self._inference):
            self._move(rows)
            if not same:
                self._select_sources(torch.tensor(groups, device=self.device, dtype=torch.long))

    def repeat_rows(self, times: int) -> Self:
        """Repeat every row `times` times, sharing its source."""
        if self.beams != 1:
            raise ValueError("the rows of this state were repeated already")
        with torch.inference_mode(self._inference):
            self._move([row for row in range(self.rows) for _ in range(times)])
        self.beams = times
        return self

    def join(self, other: Self, at: Sequence[int]) -> None:
        """Move the rows of another state here: row n becomes row `at[n]`.

        It replaces a finished row or is appended. Memory is reallocated only to grow: for more rows
        or longer ones.
        """
        if other.beams != self.beams or (other.drafter is None) != (self.drafter is None):
            raise ValueError("these states were opened for other things")
        old, groups = self.rows, [row // self.beams for row in at[:: self.beams]]
        rows = max(old, *(place + 1 for place in at))
        place_N = torch.tensor(at, device=self.device, dtype=torch.long)
        group_N = torch.tensor(groups, device=self.device, dtype=torch.long)
        with torch.inference_mode(self._inference):
            pairs = [(self.caches, other.caches), (self.drafter_caches, other.drafter_caches)]
            for ours, theirs in pairs:
                for mine, new in zip(ours, theirs, strict=True):
                    mine.join(new, place_N, rows)
            self._join_newest(other, at, place_N, rows)
            self.sources, self.drafter_sources = (
                [
                    mine and new and _join(mine, new, group_N, rows // self.beams)
                    for mine, new in both
                ]
                for both in (
                    zip(self.sources, other.sources, strict=True),
                    zip(self.drafter_sources, other.drafter_sources, strict=True),
                )
            )
        self.capacity = max(self.capacity, other.capacity)
        self._lengths = _write_at(self._lengths, other._lengths, at)
        self._before = _write_at(self._before, other._before, at)

    def _join_newest(self, other: Self, at: Sequence[int], place_N: Tensor, rows: int) -> None:
        """Join the parts that exist only after the first token."""
        if (ring := self.ring or other.ring) is not None:
            self.ring = self.ring or ring.emptied(self.rows)
            self.ring.join(other.ring or ring.emptied(other.rows), place_N, rows)
        if (recent := self.recent or other.recent) is not None:
            ours, theirs = self.recent or recent.emptied(self.rows), other.recent
            self.recent = ours.join(theirs or recent.emptied(other.rows), at, place_N, rows)

    def _move(self, rows: Sequence[int]) -> None:
        """Make row n of all caches what row `rows[n]` was."""
        used = max(self._lengths, default=0)
        row_N = torch.tensor(rows, device=self.device, dtype=torch.long)
        for cache in [*self.caches, *self.drafter_caches]:
            cache.select(row_N, used)
        if self.ring is not None:
            self.ring.select(row_N)
        if self.recent is not None:
            self.recent = self.recent.select(rows, row_N)
        self._lengths = [self._lengths[row] for row in rows]
        self._before = [self._before[row] for row in rows]

    def _select_sources(self, group_N: Tensor) -> None:
        self.sources = [source and _select(source, group_N) for source in self.sources]
        self.drafter_sources = [
            source and _select(source, group_N) for source in self.drafter_sources
        ]
        if self.memory_BSD is not None:
            self.memory_BSD = self.memory_BSD.index_select(0, group_N)
        if self.keep_BS is not None:
            self.keep_BS = self.keep_BS.index_select(0, group_N)


def _write_at(ours: Sequence[int], theirs: Sequence[int], at: Sequence[int]) -> list[int]:
    """Return a list with numbers written at these indices, extended if necessary."""
    result = [*ours, *[0] * (max(at) + 1 - len(ours))]
    for place, number in zip(at, theirs, strict=True):
        result[place] = number
    return result


def _join(ours: Source, theirs: Source, place_N: Tensor, rows: int) -> Source:
    """Write sources to these indices; shorter ones are padded and masked."""
    keep_BS = None
    whole = ours.k_BHSK.shape[2] == theirs.k_BHSK.shape[2]
    if not whole or ours.keep_BS is not None or theirs.keep_BS is not None:
        keep_BS = join_rows(_mask(ours), _mask(theirs), place_N, rows)
    return Source(
        join_rows(ours.k_BHSK, theirs.k_BHSK, place_N, rows),
        join_rows(ours.v_BHSK, theirs.v_BHSK, place_N, rows),
        keep_BS,
    )


def _mask(source: Source) -> Tensor:
    if source.keep_BS is not None:
        return source.keep_BS
    rows, _, length, _ = source.k_BHSK.shape
    return source.k_BHSK.new_ones(rows, length, dtype=torch.bool)


def _select(source: Source, row_N: Tensor) -> Source:
    keep = source.keep_BS
    return Source(
        source.k_BHSK.index_select(0, row_N),
        source.v_BHSK.index_select(0, row_N),
        None if keep is None else keep.index_select(0, row_N),
    )
