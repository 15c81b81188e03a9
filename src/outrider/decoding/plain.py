"""Plain decoding: a round is one token of the model's own, the likeliest or a drawn one.

A row draws its uniform numbers one after the other from its own seed, and turns number t into token
t by the inverse of the cumulative distribution. So what it says depends on its seed and its scores
alone: not on its neighbours, their order, or when they come and go.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from outrider.decoding.batch import Batch
from outrider.decoding.controller import Controller
from outrider.decoding.protocol import Backend
from outrider.decoding.queries import Argmax, Chosen, Grouped, Part, Sample
from outrider.decoding.replay import Replay, closeness
from outrider.decoding.request import Masked, TokenMask
from outrider.decoding.sampling import Sampling
from outrider.decoding.statistics import Statistics

__all__ = ["PlainBatch"]


class PlainBatch(Batch):
    """Greedy and sampled rows side by side, each with its own temperature, top-k and top-p."""

    def __init__(
        self,
        backend: Backend,
        stats: Statistics,
        masked: Masked,
        *,
        settled: bool = False,
        ahead: Callable[[], int] = lambda: 1,
        controller: Controller | None = None,
    ) -> None:
        """Decode rows for which the same tokens are forbidden, and the same ends them.

        With `settled` near-ties are computed again as each row alone decides them. Greedy rows may
        say `ahead` tokens in a round, which is asked anew each time. A controller compares what a
        step takes with drafting.
        """
        super().__init__(backend, stats)
        self._mask, self._ends, self._ahead = TokenMask(*masked), masked[1], ahead
        self._controller = controller
        self._clock = perf_counter if controller is None else controller.clock
        self._replay = Replay(backend, self._mask, stats) if settled else None
        self._near = closeness(backend) if settled else 0.0
        self._ways: list[tuple[Sampling | None, list[int]]] = []
        self._scores = False
        self._steady: Argmax | None = None
        """What is asked in every round, where that stays the same."""

    def changed(self) -> None:
        """See how each row's token is chosen."""
        ways: dict[Sampling | None, list[int]] = {}
        for n, row in enumerate(self.rows):
            ways.setdefault(row.config.sampling if row.stream else None, []).append(n)
        self._ways = list(ways.items())
        self._scores = any(row.config.scores for row in self.rows)
        self._steady = None
        if list(ways) == [None] and not self._mask.waits:
            self._steady = Argmax(self._mask.always, self._scores, self._near)

    def _round(self) -> None:
        started = self._clock()
        steps = self._steps()
        seconds = self._clock() - started
        self.stats.seconds["plain"] += seconds
        if self._controller is not None:
            self._controller.see_plain(len(self.rows), steps, seconds)

    def _steps(self) -> int:
        """Let every row say the same number of tokens, and return it."""
        rows = self.rows
        if self._gone:
            self._forget()
        ahead = self._ahead()
        if ahead > 1 and not self._gone and self._steady and self._steady.tokens_only:
            return self._go_on(min(ahead, *(row.room for row in rows)))
        fed = [[row.newest] for row in rows]
        if self._steady is not None or len(self._ways) == 1:
            asked = self._steady or self._ask(*self._ways[0])
            chosen: Chosen = self.backend.extend(fed, self.state, asked)
        else:
            chosen = self._mixed(fed)
        if self._replay is not None:
            self._replay.settle(rows, [()] * len(rows), chosen)
        if self._scores and chosen.log_probs is not None:
            for row, scores in zip(rows, chosen.log_probs, strict=True):
                if not row.done:
                    row.log_probs += scores
        for row, (token,) in zip(rows, chosen.tokens, strict=True):
            if not row.done:
                row.say(token)
        return 1

    def _go_on(self, steps: int) -> int:
        """Let greedy rows go on until one of them is done; return how many tokens each said."""
        newest, forbidden = [row.newest for row in self.rows], self._mask.always.always
        said = self.backend.greedy(newest, self.state, forbidden, steps=steps, ends=self._ends)
        for row, tokens in zip(self.rows, said, strict=True):
            for token in tokens:
                row.say(token)
        return len(said[0])

    def _ask(self, sampling: Sampling | None, places: list[int]) -> Argmax | Sample:
        """Return how the next tokens of some rows are chosen."""
        rows = [self.rows[n] for n in places]
        forbidden = self._mask.after([len(row.tokens) for row in rows])
        if sampling is None:
            return Argmax(forbidden, self._scores, self._near)
        numbers = [row.stream.draw() if row.stream else 0.0 for row in rows]
        return Sample(sampling, numbers, forbidden, self._scores)

    def _mixed(self, fed: list[list[int]]) -> Chosen:
        """Ask about rows whose tokens are chosen differently, in one pass."""
        parts = tuple(Part(places, 1, self._ask(way, places)) for way, places in self._ways)
        answers: list[Chosen] = self.backend.extend(fed, self.state, Grouped(parts))
        tokens: list[Any] = [None] * len(fed)
        log_probs: list[Any] = [None] * len(fed)
        for part, answer in zip(parts, answers, strict=True):
            scores = answer.log_probs or [[]] * len(part.rows)
            for n, token, score in zip(part.rows, answer.tokens, scores, strict=True):
                tokens[n], log_probs[n] = token, score
        return Chosen(tokens, log_probs if self._scores else None)
