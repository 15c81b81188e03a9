"""Plain decoding: one greedy or sampled token a round.

A row draws uniform numbers from its own seed and maps number t to token t by the inverse cumulative
distribution. Its text therefore depends only on its seed and its scores, not on other rows.
"""

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from outrider.decoding.batch import Batch
from outrider.decoding.protocol import Backend
from outrider.decoding.queries import Argmax, Chosen, Grouped, Part, Sample
from outrider.decoding.request import Masked, TokenMask
from outrider.decoding.statistics import Statistics
from outrider.options import Sampling

if TYPE_CHECKING:
    from outrider.decoding.controller import Controller
    from outrider.decoding.replay import Replay


class PlainBatch(Batch):
    """Greedy and sampled rows side by side, each with its own temperature, top-k and top-p."""

    def __init__(
        self,
        backend: Backend,
        stats: Statistics,
        masked: Masked,
        *,
        replayed: bool = False,
        ahead: Callable[[], int] = lambda: 1,
        controller: "Controller | None" = None,
    ) -> None:
        """Decode rows with the same forbidden tokens and end tokens.

        With `replayed`, near-ties are computed again from each row alone. Greedy rows may produce
        `ahead()` tokens a round. A controller compares the time of a step with drafting.
        """
        super().__init__(backend, stats)
        self._mask, self._ends, self._ahead = TokenMask(*masked), masked[1], ahead
        self._controller = controller
        self._clock = perf_counter if controller is None else controller.clock
        self._replay: Replay | None = None
        self._tie_margin = 0.0
        if replayed:
            from outrider.decoding import replay

            self._replay = replay.Replay(backend, self._mask, stats)
            self._tie_margin = replay.tie_margin(backend)
        self._groups: list[tuple[Sampling | None, list[int]]] = []
        self._scores = False
        self._fixed_query: Argmax | None = None
        """The query of every round, if it is constant."""

    def changed(self) -> None:
        """Group rows by how their tokens are chosen."""
        groups: dict[Sampling | None, list[int]] = {}
        for n, row in enumerate(self.rows):
            groups.setdefault(row.config.sampling if row.stream else None, []).append(n)
        self._groups = list(groups.items())
        self._scores = any(row.config.scores for row in self.rows)
        self._fixed_query = None
        if list(groups) == [None] and not self._mask.waits:
            self._fixed_query = Argmax(self._mask.always, self._scores, self._tie_margin)

    def _round(self) -> None:
        started = self._clock()
        steps = self._steps()
        seconds = self._clock() - started
        self.stats.seconds["plain"] += seconds
        if self._controller is not None:
            self._controller.observe_plain(len(self.rows), steps, seconds)

    def _steps(self) -> int:
        """Append the same number of tokens to every row, and return that number."""
        rows = self.rows
        if self._finished:
            self._rollback()
        ahead = self._ahead()
        if ahead > 1 and not self._finished and self._fixed_query and self._fixed_query.tokens_only:
            return self._greedy_steps(min(ahead, *(row.remaining for row in rows)))
        fed = [[row.last] for row in rows]
        if self._fixed_query is not None or len(self._groups) == 1:
            query = self._fixed_query or self._query(*self._groups[0])
            chosen: Chosen = self.backend.extend(fed, self.state, query)
        else:
            chosen = self._mixed(fed)
        if self._replay is not None:
            self._replay.resolve(rows, [()] * len(rows), chosen)
        if self._scores and chosen.log_probs is not None:
            for row, scores in zip(rows, chosen.log_probs, strict=True):
                if not row.done:
                    row.log_probs += scores
        for row, (token,) in zip(rows, chosen.tokens, strict=True):
            if not row.done:
                row.append(token)
        return 1

    def _greedy_steps(self, steps: int) -> int:
        """Run greedy steps in one call until a row is done; return the number of steps."""
        newest, forbidden = [row.last for row in self.rows], self._mask.always.always
        new = self.backend.greedy(newest, self.state, forbidden, steps=steps, ends=self._ends)
        for row, tokens in zip(self.rows, new, strict=True):
            for token in tokens:
                row.append(token)
        return len(new[0])

    def _query(self, sampling: Sampling | None, places: list[int]) -> Argmax | Sample:
        """Return the query for the next tokens of some rows."""
        rows = [self.rows[n] for n in places]
        forbidden = self._mask.after([len(row.tokens) for row in rows])
        if sampling is None:
            return Argmax(forbidden, self._scores, self._tie_margin)
        numbers = [row.stream.draw() if row.stream else 0.0 for row in rows]
        return Sample(sampling, numbers, forbidden, self._scores)

    def _mixed(self, fed: list[list[int]]) -> Chosen:
        """Query rows whose tokens are chosen differently in one pass."""
        parts = tuple(Part(rows, 1, self._query(sampling, rows)) for sampling, rows in self._groups)
        answers: list[Chosen] = self.backend.extend(fed, self.state, Grouped(parts))
        tokens: list[Any] = [None] * len(fed)
        log_probs: list[Any] = [None] * len(fed)
        for part, answer in zip(parts, answers, strict=True):
            scores = answer.log_probs or [[]] * len(part.rows)
            for n, token, score in zip(part.rows, answer.tokens, scores, strict=True):
                tokens[n], log_probs[n] = token, score
        return Chosen(tokens, log_probs if self._scores else None)
