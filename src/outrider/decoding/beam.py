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

import torch
from torch import Tensor

from outrider.decoding.config import DecodeConfig
from outrider.decoding.mask import TokenMask
from outrider.decoding.prefill import prefill
from outrider.decoding.protocol import Backend, State
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


@torch.inference_mode()
def beam(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig
) -> list[list[Hypothesis]]:
    """Return up to `n_best` hypotheses per request, best first, in the order of the requests."""
    if not requests:
        return []
    limits = [token_limit(backend, request, config) for request in requests]
    searches = [Search(limit) for limit in limits]

    state, logits_B1V = prefill(backend, requests, limits)
    mask, ranked = TokenMask(config, ends=backend.ends), _ranked(config, backend)
    live, length = searches, 0
    while True:
        log_prob_BNV = logits_B1V.log_softmax(-1).view(len(live), -1, logits_B1V.shape[-1])
        mask(log_prob_BNV, length)
        length += 1
        _force_end(log_prob_BNV, live, length, config, backend.eos)
        for search, candidates in zip(live, _rank(log_prob_BNV, live, ranked), strict=True):
            _advance(search, candidates, length, config, backend)

        if all(search.done for search in live):
            break
        state = _follow(state, live, config, first=length == 1)
        live = [search for search in live if not search.done]
        token_B1 = [[open_.token] for search in live for open_ in search.beams]
        logits_B1V = backend.extend(torch.tensor(token_B1, device=logits_B1V.device), state)
    return [search.finished[: config.n_best] for search in searches]


def _force_end(
    log_prob_BNV: Tensor, live: list[Search], length: int, config: DecodeConfig, eos: int
) -> None:
    """Leave rows at their last token nothing but a certain end token, if the config says so."""
    if not config.force_eos:
        return
    for row, search in enumerate(live):
        if length >= search.limit:
            log_prob_BNV[row] = -math.inf
            log_prob_BNV[row, :, eos] = 0.0


def _ranked(config: DecodeConfig, backend: Backend) -> int:
    """Count what must be ranked so that N are left that do not end."""
    return (1 + len(backend.ends)) * config.beams


def _rank(log_prob_BNV: Tensor, live: list[Search], ranked: int) -> list[list[Candidate]]:
    """Return the best continuations of each search, best first."""
    vocab = log_prob_BNV.shape[-1]
    if live[0].beams:
        so_far = [[open_.log_prob for open_ in search.beams] for search in live]
        log_prob_BNV = log_prob_BNV + torch.tensor(so_far, device=log_prob_BNV.device)[:, :, None]
    flat = log_prob_BNV.flatten(1)
    best, place = flat.topk(min(ranked, flat.shape[1]))
    return [
        [
            Candidate(value, *divmod(index, vocab))
            for value, index in zip(values, places, strict=True)
        ]
        for values, places in zip(best.tolist(), place.tolist(), strict=True)
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
            state.select(torch.tensor(still, device=state.length_B.device))
        return state.fan(config.beams) if config.beams > 1 else state
    rows = [
        n * config.beams + open_.parent
        for n, search in enumerate(live)
        if not search.done
        for open_ in search.beams
    ]
    if rows != list(range(len(live) * config.beams)):
        state.select(torch.tensor(rows, device=state.length_B.device))
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
