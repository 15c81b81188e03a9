"""The batch plan: which rows are trained on together, in which order, on which rank.

It is a pure function of (seed, epoch, lengths, token budget, world size). A `Cursor` names the next
batch and is the only state: resuming recomputes the plan of one group exactly.

    shards   are stored in blocks of rows. An epoch shuffles the blocks and walks them in
    groups   of at least `window_rows` rows (the rest of an epoch joins its last group), so rows of
             distant shards are mixed, and at most about two windows are in memory. A group's
             rows are sorted by length, equal lengths in random order, and cut into
    batches  of at most `tokens` padded tokens per rank, which are then shuffled.

Batches come in few shapes: lengths are padded to multiples of LENGTH_STEP, and rows are counted in
ROW_STEPs where the budget allows. On a CPU, matrix kernels are compiled for every new shape, which
took a quarter of the training time when each batch had its own shape.

A batch is divided among the ranks row by row, so every rank has nearly the same cost, and each row
occurs exactly once per epoch. Random numbers come from integer arithmetic in this file, so they do
not depend on the version of a library.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.errors import DataError

IntArray = NDArray[np.int64]
Lengths = Callable[[IntArray, int], tuple[IntArray, IntArray]]

LENGTH_STEP, ROW_STEP = 4, 8
BLOCKS, ROWS, BATCHES = range(3)  # keys of the three independent permutations


@dataclass(frozen=True, order=True)
class Cursor:
    """The next batch. Convertible to JSON by `dataclasses.asdict` and `Cursor(**values)`."""

    epoch: int = 0
    group: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Group:
    """Rows of several blocks, ordered into batches and numbered across these blocks."""

    blocks: IntArray
    order: IntArray
    starts: IntArray
    stops: IntArray
    world_size: int

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, batch: int, rank: int) -> IntArray:
        """Return the rows of a batch for one rank."""
        return self.order[self.starts[batch] : self.stops[batch]][rank :: self.world_size]


@dataclass(frozen=True)
class Batch:
    """One training step of all ranks."""

    cursor: Cursor
    group: Group

    def rows(self, rank: int = 0) -> IntArray:
        """Return the rows of `group` for one rank."""
        return self.group.rows(self.cursor.batch, rank)


@dataclass(frozen=True)
class BatchPlan:
    """Plans batches over blocks of rows with known lengths."""

    block_rows: IntArray
    """Rows of each block of the corpus."""
    lengths: Lengths
    """Maps block numbers and an epoch to the source and target lengths of their rows, block after
    block."""
    seed: int
    tokens: int
    """Budget of a rank's batch: rows times the longest side, including end tokens."""
    world_size: int = 1
    max_length: int = 1024
    """Rows are truncated to this many tokens, including the end token."""
    window_rows: int = 200_000

    def __post_init__(self) -> None:
        rows = int(self.block_rows.sum())
        if rows < self.world_size:
            raise DataError(
                f"{rows} training rows cannot be divided among {self.world_size} processes; "
                "start fewer processes or prepare more data"
            )

    def batches_from(self, cursor: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        """Yield every batch from `cursor` on without end, with the cursor after it."""
        while True:
            groups = self.groups(cursor.epoch)
            self._check(cursor.group < len(groups), cursor)
            group = self.group(cursor.epoch, cursor.group, groups[cursor.group])
            self._check(cursor.batch < len(group), cursor)
            last = cursor.group + 1 == len(groups)
            after = Cursor(cursor.epoch + last, 0 if last else cursor.group + 1)
            for index in range(cursor.batch, len(group)):
                here = Cursor(cursor.epoch, cursor.group, index)
                there = Cursor(cursor.epoch, cursor.group, index + 1)
                yield Batch(here, group), there if index + 1 < len(group) else after
            cursor = after

    def groups(self, epoch: int) -> list[IntArray]:
        """Return the blocks of each group of an epoch, in training order."""
        blocks = permutation(len(self.block_rows), self.seed, epoch, BLOCKS)
        ends = np.cumsum(self.block_rows[blocks])
        window = max(self.window_rows, self.world_size)
        cuts, start = [0], 0
        while ends[-1] - start >= 2 * window:
            cuts.append(int(np.searchsorted(ends, start + window)) + 1)
            start = int(ends[cuts[-1] - 1])
        if ends[-1] - start < window and len(cuts) > 1:
            cuts.pop()
        return np.split(blocks, cuts[1:])

    def group(self, epoch: int, index: int, blocks: IntArray) -> Group:
        """Plan the batches of one group."""
        source, target = self.lengths(blocks, epoch)
        order = self._sort(source, target, epoch, index)
        padded = padded_length(np.maximum(source, target) + 1, self.max_length)
        cuts = np.array(_cut(padded[order].tolist(), self.tokens, self.world_size))
        shuffled = permutation(len(cuts) - 1, self.seed, epoch, BATCHES, index)
        return Group(blocks, order, cuts[:-1][shuffled], cuts[1:][shuffled], self.world_size)

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches of an epoch; reads the lengths of the whole corpus."""
        groups = self.groups(epoch)
        return sum(len(self.group(epoch, i, blocks)) for i, blocks in enumerate(groups))

    def _sort(self, source: IntArray, target: IntArray, epoch: int, index: int) -> IntArray:
        """Sort by target length; source lengths alternately rise and fall between buckets."""
        source, target = _bucket(source), _bucket(target)
        turn = np.where(target % 2 == 0, source, -source)
        shuffled = permutation(len(source), self.seed, epoch, ROWS, index)
        return shuffled[np.lexsort((turn[shuffled], -target[shuffled]))]

    def _check(self, fits: bool, cursor: Cursor) -> None:
        if not fits:
            raise DataError(
                f"{cursor} is outside this batch plan; the data, the token budget or the "
                "number of processes changed since it was saved"
            )


def permutation(count: int, *key: int) -> IntArray:
    """Return a permutation of range(count) that depends on `key` only."""
    return np.argsort(_mix(np.arange(count, dtype=np.uint64) + _state(key)), kind="stable")


def random_below(count: int, *key: int) -> int:
    """Return a number in range(count) that depends on `key` only."""
    return int(_state(key)[0] % np.uint64(count))


def random_uniform(count: int, *key: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1) that depend on `key` only."""
    bits = _mix(np.arange(count, dtype=np.uint64) + _state(key)) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _state(key: tuple[int, ...]) -> NDArray[np.uint64]:
    state = np.zeros(1, np.uint64)
    for part in key:
        state = _mix(state ^ np.array([part % 2**64], np.uint64))
    return state


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of the SplitMix64 generator (Steele, Lea and Flood, 2014), wrapping at 64 bits."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def padded_length(lengths: IntArray, max_length: int) -> IntArray:
    """Return the padded lengths, in steps of LENGTH_STEP, up to `max_length`."""
    return np.minimum(-(-lengths // LENGTH_STEP) * LENGTH_STEP, max_length)


def rows_that_fit(tokens: int, length: int) -> int:
    """Return the number of rows of a length within a budget of tokens."""
    rows = tokens // length
    return rows - rows % ROW_STEP if rows >= ROW_STEP else rows


def _bucket(lengths: IntArray) -> IntArray:
    """Return the number of the length bucket; a bucket's width is an eighth of its length."""
    edges = [0]
    longest = int(lengths.max(initial=0))
    while edges[-1] < longest:
        edges.append(edges[-1] + max(1, edges[-1] // 8))
    return np.searchsorted(edges, lengths)


def _cut(lengths: list[int], tokens: int, world_size: int) -> list[int]:
    """Cut rows into batches within the budget, with at least one row per rank.

    A row over the budget gets a batch with one row per rank. Fewer rows than ranks at the end take
    rows of the previous batch, or join it if it has too few.
    """
    cuts, longest = [0], 0
    for end, length in enumerate(lengths):
        rows = end - cuts[-1] + 1
        longest = max(longest, length)
        if rows > world_size and -(-rows // world_size) > rows_that_fit(tokens, longest):
            cuts.append(end)
            longest = length
    cuts.append(len(lengths))
    if len(cuts) > 2 and cuts[-1] - cuts[-2] < world_size:
        if cuts[-1] - cuts[-3] >= 2 * world_size:
            cuts[-2] = cuts[-1] - world_size
        else:
            del cuts[-2]
    return cuts
