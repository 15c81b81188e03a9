"""Whether to draft at all, where that changes only the time it takes.

A policy foretells it from what calls cost, and is overruled by what spells of drafting and of plain
steps really took (`batch_speeds.py`). One spell lasts until the rows that came with it are done, or
enough have come; then both are asked again.
"""

from collections.abc import Sequence
from time import perf_counter

from outrider.decoding.policy import DraftPolicy
from outrider.decoding.row import Row
from outrider.decoding.statistics import Statistics

__all__ = ["DraftChoice"]

SPELL = 512
"""Rows after which the way is chosen anew, if there is never a pause."""


class DraftChoice:
    """Remembers which way was chosen, and how it went."""

    def __init__(self, policy: DraftPolicy, stats: Statistics) -> None:
        self.policy, self.stats = policy, stats
        self.drafts = True
        """Whether rows that come now are drafted for."""
        self._inside: set[int] = set()
        """Rows of this spell that are not done."""
        self._came = self._most = self._tokens = 0
        self._began = 0.0

    def came(self, new: Sequence[Row]) -> None:
        """Choose for rows that come now."""
        if not self._inside or self._came >= SPELL:
            self._begin(new)
        self._inside.update(row.id for row in new)
        self._came += len(new)
        self._most = max(self._most, len(self._inside))

    def left(self, finished: Sequence[Row]) -> None:
        """Learn that rows are done; after the last one the spell is over."""
        for row in finished:
            if row.id in self._inside:
                self._inside.remove(row.id)
                self._tokens += len(row.tokens)
                if not self._inside:
                    self._end()

    def _begin(self, new: Sequence[Row]) -> None:
        if self._inside:  # those go on, but no longer count
            self._end()
            self._inside.clear()
        rows = len(new)
        length = sum(min(len(row.request.source) or row.limit, row.limit) for row in new) / rows
        objection = self.policy.objection(rows, length=length)
        objection = objection or self.policy.speeds.objection(rows)
        self.drafts = objection is None
        if objection is not None:
            self.policy.relax()
            self.stats.note(f"{objection}: decoded without drafting")
        self._came = self._most = self._tokens = 0
        self._began = perf_counter()

    def _end(self) -> None:
        seconds = perf_counter() - self._began
        self.policy.speeds.note(
            self._most, drafting=self.drafts, tokens=self._tokens, seconds=seconds
        )
