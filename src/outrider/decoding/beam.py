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
from typing import NamedTuple

import numpy as np

from outrider.decoding.config import DecodeConfig
from outrider.decoding.mask import TokenMask
from outrider.decoding.prefill import feed_prompts, open_rows
from outrider.decoding.protocol import Backend, State
from outrider.decoding.questions import Best, Top
from outrider.decoding.request import Finish, Hypothesis, Request, token_limit

__all__ = ["beam"]

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
    """The search of one request: its open beams and its best finished hypotheses."""

    limit: int
    beams: list[Beam] = field(default_factory=list)
    finished: list[Hypothesis] = field(default_factory=list)
    done: bool = False


def beam(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig
) -> list[list[Hypothesis]]:
    """Return up to `n_best` hypotheses per request, best first, in the order of the requests."""
    if not requests:
        return []
    limits = [token_limit(backend, request, config) for request in requests]
    live = searches = [Search(limit) for limit in limits]
    mask = TokenMask(config, ends=backend.ends)
    ranked = (1 + len(backend.ends)) * config.beams

    state = open_rows(backend, requests, limits)
    best = feed_prompts(backend, state, requests, Top(ranked, mask.after([0] * len(live))))
    length = 0
    while True:
        length += 1
        for search, candidates in zip(live, _rank(best, live, ranked), strict=True):
            if config.force_eos and length >= search.limit:
                candidates = _only_end(search, backend.eos)
            _advance(search, candidates, length, config, backend)

        if all(search.done for search in live):
            break
        state = _follow(state, live, config, first=length == 1)
        live = [search for search in live if not search.done]
        tokens = [[open_.token] for search in live for open_ in search.beams]
        best = backend.extend(tokens, state, Top(ranked, mask.after([length] * len(tokens))))
    return [search.finished[: config.n_best] for search in searches]


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


def _advance(
    search: Search,
    candidates: list[Candidate],
    length: int,
    config: DecodeConfig,
    backend: Backend,
) -> None:
    """Take one step: sort the ranked candidates into finished hypotheses and open beams."""
    at_limit = length >= search.limit
    penalty = float(length) ** config.length_penalty
    grown: list[Beam] = []
    for rank, (log_prob, parent, token) in enumerate(candidates):
        if log_prob == -math.inf:
            break
        before = search.beams[parent] if search.beams else None
        prefix = (before.prefix, before.token) if before else None
        if token in backend.ends or at_limit:
            if rank < config.beams:
                ended = token in backend.ends
                finish: Finish = "length" if at_limit and (config.force_eos or not ended) else "eos"
                words = _unwind(prefix if ended else (prefix, token))
                search.finished.append(Hypothesis(words, finish, log_prob / penalty))
        elif len(grown) < config.beams:
            grown.append(Beam(log_prob, parent, token, prefix))
    search.finished.sort(key=_score, reverse=True)
    del search.finished[config.beams :]
    search.done = not grown or _is_settled(search, grown[0].log_prob / penalty, config)
    dead = Beam(-math.inf, 0, backend.pad, None)
    search.beams = grown + [dead] * (config.beams - len(grown))


def _is_settled(search: Search, best_open: float, config: DecodeConfig) -> bool:
    full = len(search.finished) == config.beams
    return full and best_open <= _score(search.finished[-1])


def _follow(state: State, live: list[Search], config: DecodeConfig, *, first: bool) -> State:
    """Give every beam its parent's memory and drop the groups of finished searches."""
    if first:
        still = [n for n, search in enumerate(live) if not search.done]
        if len(still) < len(live):
            state.select(still)
        return state.repeat_rows(config.beams) if config.beams > 1 else state
    rows = [
        n * config.beams + open_.parent
        for n, search in enumerate(live)
        if not search.done
        for open_ in search.beams
    ]
    if rows != list(range(len(live) * config.beams)):
        state.select(rows)
    return state


def _unwind(chain: Chain) -> tuple[int, ...]:
    tokens = []
    while chain is not None:
        chain, token = chain
        tokens.append(token)
    return tuple(reversed(tokens))


def _score(hypothesis: Hypothesis) -> float:
    assert hypothesis.score is not None
    return hypothesis.score
