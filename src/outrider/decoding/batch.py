"""Rows that are decoded together: they share a state, and go through the same kind of round.

A row joins in a free slot or behind the last row; its state is not moved. Where moving rows
is not free (`Backend.compact_threshold`), a finished row keeps its slot until another row takes it
or too many rows have finished.
"""

from collections.abc import Sequence
from time import perf_counter

from outrider.decoding.protocol import Backend, State
from outrider.decoding.queries import Nothing
from outrider.decoding.request import Row
from outrider.decoding.statistics import Statistics

__all__ = ["Batch"]


class Batch:
    """What greedy decoding, sampling and tandem decoding have in common."""

    drafting = False
    state: State

    def __init__(self, backend: Backend, stats: Statistics, *, block: int = 0) -> None:
        self.backend, self.stats, self.block = backend, stats, block
        self.rows: list[Row] = []
        """One for each row of the state; some may be done."""
        self._gone = 0
        """How many of them are done."""

    def join(self, new: Sequence[Row]) -> None:
        """Open rows and put them beside those that are there, which see nothing of it.

        If that fails, nothing has changed.
        """
        state, new = self._open(new), list(new)
        holes = [n for n, row in enumerate(self.rows) if row.done]
        if len(holes) == len(self.rows):
            self.state, self.rows, self._gone = state, new, 0
        else:
            places = [*holes, *range(len(self.rows), len(self.rows) + len(new))][: len(new)]
            self.state.join(state, places)
            self.rows += new[len(holes) :]
            for place, row in zip(holes, new, strict=False):
                self.rows[place] = row
            self._gone = max(0, len(holes) - len(new))
        self.changed()

    def step(self) -> None:
        """Run one round, in which every row says something."""
        self._round()
        self.tidy()

    def tidy(self) -> None:
        """Let rows that are done leave, if they are enough."""
        gone = 0
        for row in self.rows:
            gone += row.done
        if gone == self._gone:
            return
        self._gone = gone
        if gone == len(self.rows):
            self.rows = []
            del self.state
        elif gone > self.backend.compact_threshold * len(self.rows):
            open_ = [n for n, row in enumerate(self.rows) if not row.done]
            self.state.select(open_)
            self.rows, self._gone = [self.rows[n] for n in open_], 0
            self.changed()

    def changed(self) -> None:
        """Learn that other rows are there than in the last round."""

    def _round(self) -> None:
        raise NotImplementedError

    def _open(self, new: Sequence[Row]) -> State:
        """Encode sources and feed prompts, ragged as they are; the newest token is not fed."""
        started = perf_counter()
        most, room = self.backend.max_length, []
        for row in new:
            # The last token of a row is never fed back, so it needs no room; the start token does.
            capacity = len(row.request.prompt) + row.limit + self.block
            room.append(capacity if most is None else min(capacity, most))
        sources = [row.request.source for row in new]
        state = self.backend.encode(sources, capacity=room, drafting=self.drafting)
        if any(row.held for row in new):
            fed = [row.request.opening(self.backend)[: row.held] for row in new]
            self.backend.extend(fed, state, Nothing(), last=True)
        self.stats.seconds["encode"] += perf_counter() - started
        return state

    def _forget(self) -> None:
        """Roll back what the last round took in beyond what each row has said."""
        held = [row.held for row in self.rows]
        if held != self.state.lengths:
            self.state.rollback(held)
