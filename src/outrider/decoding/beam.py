"""Beam search with a length penalty and n-best output.

    score(y) = log p(y | x) / |y| ** length_penalty          |y| counts the end token

Each step ranks the best 2N continuations of a row's N beams, with E end tokens (1 + E) N of them.
Those among the first N that end become finished hypotheses; the best N that do not end are the next
beams. A row stops when it holds N finished ones and its best open beam, were it to end now, would
not displace the worst of them.
These are the rules of `generate(num_beams=N)` in transformers with its default
`early_stopping=False`, and the output is the same, token for token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np

from outrider.decoding.protocol import Backend, State
from outrider.decoding.queries import Best, TopK
from outrider.decoding.request import Finish, Hypothesis, Masked, Row, TokenMask
from outrider.decoding.statistics import Statistics

__all__ = ["BeamBatch"]

Chain = tuple["Chain", int] | None
"""A sequence as its prefix and its last token: beams with a common prefix share it."""


class Candidate(NamedTuple):
    """One continuation: its log-probability so far, the beam it extends, and the new token."""

    log_prob: float
    parent: int
    token: int


class Beam(NamedTuple):
    """One open sequence; `parent` is the row of its group whose memory it continues."""

    log_prob: float
    parent: int
    token: int
    prefix: Chain


@dataclass
class Search:
    """The search of one row: its open beams and its best finished hypotheses."""

    row: Row
    length: int = 0
    """Tokens of its open beams."""
    beams: list[Beam] = field(default_factory=list)
    finished: list[Hypothesis] = field(default_factory=list)

    def settle(self) -> None:
        """Hand the row what was found; where it was stopped on the way, the best open beam too."""
        found, stopped = self.finished, self.row.stopped
        if stopped is not None:
            penalty = float(max(1, self.length)) ** self.row.config.length_penalty
            found = found + [
                Hypothesis(_unwind((one.prefix, one.token)), stopped, one.log_prob / penalty)
                for one in self.beams[:1]
            ]
        self.row.best = found[: self.row.config.n_best]


class BeamBatch:
    """Rows with equally many beams, for which the same tokens are forbidden."""

    def __init__(self, backend: Backend, stats: Statistics, masked: Masked, *, beams: int) -> None:
        """Keep so many `beams` of each row."""
        self.backend, self.stats, self.beams = backend, stats, beams
        self._mask = TokenMask(*masked)
        self._ranked = (1 + len(masked[1])) * beams
        self._searches: list[Search] = []
        self._state: State | None = None

    @property
    def rows(self) -> list[Row]:
        """The rows that are still searched for."""
        return [search.row for search in self._searches]

    def join(self, new: Sequence[Row]) -> None:
        """Open rows, take their first step, and put their beams beside those that are there."""
        started = perf_counter()
        backend, searches = self.backend, [Search(row) for row in new]
        room = [len(row.request.prompt) + row.limit for row in new]
        state = backend.encode([row.request.source for row in new], capacity=room)
        fed = [row.request.opening(backend) for row in new]
        self._advance(searches, backend.extend(fed, state, self._ask([0] * len(new)), last=True))
        open_ = [n for n, search in enumerate(searches) if not search.row.done]
        if open_:
            if len(open_) < len(searches):
                state.select(open_)
            if self.beams > 1:
                state = state.repeat_rows(self.beams)
            if self._state is None:
                self._state = state
            else:
                first = len(self._searches) * self.beams
                self._state.join(state, range(first, first + len(open_) * self.beams))
            self._searches += [searches[n] for n in open_]
        self.stats.seconds["plain"] += perf_counter() - started

    def step(self) -> None:
        """Let every beam go on by one token."""
        started = perf_counter()
        self.tidy()
        if self._state is not None:
            searches = self._searches
            tokens = [[one.token] for search in searches for one in search.beams]
            lengths = [search.length for search in searches for _ in search.beams]
            best = self.backend.extend(tokens, self._state, self._ask(lengths))
            self._advance(searches, best)
            self._follow()
        self.stats.seconds["plain"] += perf_counter() - started

    def tidy(self) -> None:
        """Let rows leave that were stopped."""
        if any(search.row.done for search in self._searches):
            for search in self._searches:
                if search.row.done:
                    search.settle()
                search.beams = [one._replace(parent=n) for n, one in enumerate(search.beams)]
            self._follow()

    def _ask(self, produced: Sequence[int]) -> TopK:
        return TopK(self._ranked, self._mask.after(produced))

    def _advance(self, searches: list[Search], best: Best) -> None:
        """Take a step in each search; the rows whose searches are over are done."""
        for search, candidates in zip(searches, _rank(best, searches, self._ranked), strict=True):
            search.length += 1
            if search.row.config.force_eos and search.length >= search.row.limit:
                candidates = _only_end(search, self.backend.eos)
            _step(search, candidates, self.beams, self.backend.pad)
            if search.row.done:
                search.settle()

    def _follow(self) -> None:
        """Give every beam its parent's memory, and drop the beams of searches that are over."""
        beams, state = self.beams, self._state
        assert state is not None
        rows = [
            n * beams + one.parent
            for n, search in enumerate(self._searches)
            if not search.row.done
            for one in search.beams
        ]
        if not rows:
            self._searches, self._state = [], None
        elif rows != list(range(len(self._searches) * beams)):
            state.select(rows)
            self._searches = [search for search in self._searches if not search.row.done]


def _only_end(search: Search, eos: int) -> list[Candidate]:
    """Leave a row at its last token nothing but a certain end token."""
    open_ = [open_.log_prob for open_ in search.beams] or [0.0]
    found = [Candidate(log_prob, parent, eos) for parent, log_prob in enumerate(open_)]
    return sorted(found, key=lambda candidate: -candidate.log_prob)


def _rank(best: Best, live: list[Search], ranked: int) -> list[list[Candidate]]:
    """Return the best continuations of each search, best first; sums are those of float32.

    The best `ranked` of all beams are among the best `ranked` of each.
    """
    each = len(best.tokens[0])
    log_prob_BNR = np.array(best.log_probs, dtype=np.float32).reshape(len(live), -1, each)
    token_BX = np.array(best.tokens).reshape(len(live), -1)
    if live[0].beams:
        so_far = [[open_.log_prob for open_ in search.beams] for search in live]
        log_prob_BNR = log_prob_BNR + np.array(so_far, dtype=np.float32)[:, :, None]
    log_prob_BX = log_prob_BNR.reshape(len(live), -1)
    order_BX = np.argsort(-log_prob_BX, axis=1, kind="stable")[:, :ranked]
    return [
        [
            Candidate(float(log_prob_X[place]), int(place) // each, int(token_X[place]))
            for place in order_X
        ]
        for log_prob_X, token_X, order_X in zip(log_prob_BX, token_BX, order_BX, strict=True)
    ]


def _step(search: Search, candidates: list[Candidate], beams: int, pad: int) -> None:
    """Sort the ranked candidates into finished hypotheses and open beams."""
    row, length = search.row, search.length
    config, ends = row.config, row.ends
    at_limit = length >= row.limit
    penalty = float(length) ** config.length_penalty
    grown: list[Beam] = []
    for rank, (log_prob, parent, token) in enumerate(candidates):
        if log_prob == -math.inf:
            break
        before = search.beams[parent] if search.beams else None
        prefix = (before.prefix, before.token) if before else None
        if token in ends or at_limit:
            if rank < beams:
                ended = token in ends
                finish: Finish = "length" if at_limit and (config.force_eos or not ended) else "eos"
                words = _unwind(prefix if ended else (prefix, token))
                search.finished.append(Hypothesis(words, finish, log_prob / penalty))
        elif len(grown) < beams:
            grown.append(Beam(log_prob, parent, token, prefix))
    search.finished.sort(key=_score, reverse=True)
    del search.finished[beams:]
    # Settled once no open beam, were it to end now, would displace the worst of the finished.
    full = len(search.finished) == beams
    best_open = grown[0].log_prob / penalty if grown else -math.inf
    row.done = not grown or (full and best_open <= _score(search.finished[-1]))
    dead = Beam(-math.inf, 0, pad, None)
    search.beams = grown + [dead] * (beams - len(grown))


def _unwind(chain: Chain) -> tuple[int, ...]:
    tokens = []
    while chain is not None:
        chain, token = chain
        tokens.append(token)
    return tuple(reversed(tokens))


def _score(hypothesis: Hypothesis) -> float:
    assert hypothesis.score is not None
    return hypothesis.score
