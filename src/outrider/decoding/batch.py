"""Rows that share a backend state and run the same kind of round.

A row joins in a free slot or behind the last row; other rows are not moved. Where moving rows costs
time (`Backend.compact_threshold`), a finished row keeps its slot until another row takes it or too
many rows have finished.
"""

from collections.abc import Sequence
from time import perf_counter

from outrider.decoding.protocol import Backend, State
from outrider.decoding.queries import Nothing
from outrider.decoding.request import Row
from outrider.decoding.statistics import Statistics


class Batch:
    """Base of greedy decoding, sampling and tandem decoding."""

    drafting = False
    state: State

    def __init__(self, backend: Backend, stats: Statistics, *, block: int = 0) -> None:
        self.backend, self.stats, self.block = backend, stats, block
        self.rows: list[Row] = []
        """One for each row of the state, finished rows included."""
        self._finished = 0
        """Number of finished rows."""

    def join(self, new: Sequence[Row]) -> None:
        """Open rows and add them to the batch; on failure the batch is unchanged."""
        state, new = self._open(new), list(new)
        free = [n for n, row in enumerate(self.rows) if row.done]
        if len(free) == len(self.rows):
            self.state, self.rows, self._finished = state, new, 0
        else:
            slots = [*free, *range(len(self.rows), len(self.rows) + len(new))][: len(new)]
            self.state.join(state, slots)
            self.rows += new[len(free) :]
            for slot, row in zip(free, new, strict=False):
                self.rows[slot] = row
            self._finished = max(0, len(free) - len(new))
        self.changed()

    def step(self) -> None:
        """Run one round, in which every row gets at least one token."""
        self._round()
        self.compact()

    def compact(self) -> None:
        """Remove finished rows from the state, if there are enough of them."""
        finished = 0
        for row in self.rows:
            finished += row.done
        if finished == self._finished:
            return
        self._finished = finished
        if finished == len(self.rows):
            self.rows = []
            del self.state
        elif finished > self.backend.compact_threshold * len(self.rows):
            open_ = [n for n, row in enumerate(self.rows) if not row.done]
            self.state.select(open_)
            self.rows, self._finished = [self.rows[n] for n in open_], 0
            self.changed()

    def changed(self) -> None:
        """Update what depends on which rows are in the batch."""

    def _round(self) -> None:
        raise NotImplementedError

    def _open(self, new: Sequence[Row]) -> State:
        """Encode sources and feed prompts without their last token."""
        started = perf_counter()
        longest, capacities = self.backend.max_length, []
        for row in new:
            # The last token of a row is never fed back and needs no capacity; the start token does.
            capacity = len(row.request.prompt) + row.limit + self.block
            capacities.append(capacity if longest is None else min(capacity, longest))
        sources = [row.request.source for row in new]
        state = self.backend.encode(sources, capacity=capacities, drafting=self.drafting)
        if any(row.cached for row in new):
            fed = [row.request.opening(self.backend)[: row.cached] for row in new]
            self.backend.extend(fed, state, Nothing(), last=True)
        self.stats.seconds["encode"] += perf_counter() - started
        return state

    def _rollback(self) -> None:
        """Remove rejected drafts of the last round from the state."""
        cached = [row.cached for row in self.rows]
        if cached != self.state.lengths:
            self.state.rollback(cached)
