"""Beam search with a length penalty and n-best output.

    score(y) = log p(y | x) / |y| ** length_penalty          |y| counts the end token

Each step ranks the best 2N continuations of a row's N beams, with E end tokens (1 + E) N of them.
Those among the first N that end become finished hypotheses; the best N that do not end are the next
beams. A row stops when it holds N finished ones and its best open beam, were it to end now, would
not displace the worst of them.
The output equals, token for token, that of `generate(num_beams=N)` in transformers with its default
`early_stopping=False`.
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

Chain = tuple["Chain", int] | None
"""A sequence as its prefix and its last token; beams share common prefixes."""


class Candidate(NamedTuple):
    """One continuation: its log-probability so far, the beam it extends, and the new token."""

    log_prob: float
    parent: int
    token: int


class Beam(NamedTuple):
    """One open sequence; `parent` is the row of its group whose cache it continues."""

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
        """Give the row its hypotheses; a stopped row also gets its best open beam."""
        hypotheses, stopped = self.finished, self.row.stopped
        if stopped is not None:
            penalty = float(max(1, self.length)) ** self.row.config.length_penalty
            hypotheses = hypotheses + [
                Hypothesis(_unwind((beam.prefix, beam.token)), stopped, beam.log_prob / penalty)
                for beam in self.beams[:1]
            ]
        self.row.best = hypotheses[: self.row.config.n_best]


class BeamBatch:
    """Rows with the same number of beams and the same forbidden tokens."""

    def __init__(self, backend: Backend, stats: Statistics, masked: Masked, *, beams: int) -> None:
        self.backend, self.stats, self.beams = backend, stats, beams
        self._mask = TokenMask(*masked)
        self._ranked = (1 + len(masked[1])) * beams
        self._searches: list[Search] = []
        self._state: State | None = None

    @property
    def rows(self) -> list[Row]:
        """The rows whose search is not over."""
        return [search.row for search in self._searches]

    def join(self, new: Sequence[Row]) -> None:
        """Open rows, run their first step, and add their beams to the state."""
        started = perf_counter()
        backend, searches = self.backend, [Search(row) for row in new]
        capacities = [len(row.request.prompt) + row.limit for row in new]
        state = backend.encode([row.request.source for row in new], capacity=capacities)
        fed = [row.request.opening(backend) for row in new]
        self._advance(searches, backend.extend(fed, state, self._query([0] * len(new)), last=True))
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
        """Extend every beam by one token."""
        started = perf_counter()
        self.compact()
        if self._state is not None:
            searches = self._searches
            tokens = [[beam.token] for search in searches for beam in search.beams]
            lengths = [search.length for search in searches for _ in search.beams]
            best = self.backend.extend(tokens, self._state, self._query(lengths))
            self._advance(searches, best)
            self._follow()
        self.stats.seconds["plain"] += perf_counter() - started

    def compact(self) -> None:
        """Remove rows that were stopped."""
        if any(search.row.done for search in self._searches):
            for search in self._searches:
                if search.row.done:
                    search.settle()
                search.beams = [beam._replace(parent=n) for n, beam in enumerate(search.beams)]
            self._follow()

    def _query(self, produced: Sequence[int]) -> TopK:
        return TopK(self._ranked, self._mask.after(produced))

    def _advance(self, searches: list[Search], best: Best) -> None:
        """Advance each search by one step and settle those that are over."""
        for search, candidates in zip(searches, _rank(best, searches, self._ranked), strict=True):
            search.length += 1
            if search.row.config.force_eos and search.length >= search.row.limit:
                candidates = _only_end(search, self.backend.eos)
            _step(search, candidates, self.beams, self.backend.pad)
            if search.row.done:
                search.settle()

    def _follow(self) -> None:
        """Give every beam its parent's cache, and drop the beams of finished searches."""
        beams, state = self.beams, self._state
        assert state is not None
        rows = [
            n * beams + beam.parent
            for n, search in enumerate(self._searches)
            if not search.row.done
            for beam in search.beams
        ]
        if not rows:
            self._searches, self._state = [], None
        elif rows != list(range(len(self._searches) * beams)):
            state.select(rows)
            self._searches = [search for search in self._searches if not search.row.done]


def _only_end(search: Search, eos: int) -> list[Candidate]:
    """Return one candidate per beam: the end token with probability 1."""
    open_ = [beam.log_prob for beam in search.beams] or [0.0]
    candidates = [Candidate(log_prob, parent, eos) for parent, log_prob in enumerate(open_)]
    return sorted(candidates, key=lambda candidate: -candidate.log_prob)


def _rank(best: Best, live: list[Search], ranked: int) -> list[list[Candidate]]:
    """Return the best continuations of each search, best first, summed in float32.

    The best `ranked` of all beams are among the best `ranked` of each.
    """
    each = len(best.tokens[0])
    log_prob_BNR = np.array(best.log_probs, dtype=np.float32).reshape(len(live), -1, each)
    token_BX = np.array(best.tokens).reshape(len(live), -1)
    if live[0].beams:
        so_far = [[beam.log_prob for beam in search.beams] for search in live]
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
                tokens = _unwind(prefix if ended else (prefix, token))
                search.finished.append(Hypothesis(tokens, finish, log_prob / penalty))
        elif len(grown) < beams:
            grown.append(Beam(log_prob, parent, token, prefix))
    search.finished.sort(key=_score, reverse=True)
    del search.finished[beams:]
    # Done once no open beam, if it ended now, would displace the worst finished hypothesis.
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
