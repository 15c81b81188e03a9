"""Queries about the scores of the next tokens.

A query computes its answer from an array of scores [B, T, V]. A backend computes the scores and
calls `answer` on their device, or recognises the query and answers it in its own way, such as
argmax while the scores are in the processor's cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from outrider.decoding.arrays import Array, forbid, like, log_total, pick, top, where
from outrider.decoding.sampling import choose
from outrider.inverse_cdf import invert, masses
from outrider.options import Sampling

AnswerT_co = TypeVar("AnswerT_co", covariant=True)

PATHS_FROM = 8
"""Likeliest tokens of a slot from which further paths are sampled."""


class Query(Protocol[AnswerT_co]):
    """A query about scores."""

    def answer(self, logits_BTV: Array) -> AnswerT_co:
        """Return a few numbers; may overwrite the scores."""
        ...


@dataclass(frozen=True)
class Forbidden:
    """Tokens that must not be produced."""

    always: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    """Tokens that end a text."""
    early: tuple[int, ...] = ()
    """For each row, the number of next positions at which `ends` are forbidden; empty for none."""

    def apply(self, scores_BTV: Array) -> None:
        """Set the scores of forbidden tokens to minus infinity, in place."""
        forbid(scores_BTV, self.always)
        for row, places in enumerate(self.early):
            if places:
                forbid(scores_BTV[row, :places], self.ends)

    def everywhere(self, places: int) -> tuple[int, ...] | None:
        """Return the tokens forbidden at the first `places` of every row; None if they differ."""
        if not any(self.early):
            return self.always
        return (*self.always, *self.ends) if min(self.early) >= places else None


NOTHING_FORBIDDEN = Forbidden()


class Chosen(NamedTuple):
    """The chosen token of every row and position."""

    tokens: list[list[int]]
    log_probs: list[list[float]] | None = None
    """Their log-probabilities among all tokens, forbidden ones included, if requested."""
    near: list[list[bool]] | None = None
    """Whether another token is nearly tied, if requested."""


class Best(NamedTuple):
    """The likeliest tokens of every row, best first."""

    tokens: list[list[int]]
    log_probs: list[list[float]]


class Paths(NamedTuple):
    """The tokens of the slots of every row."""

    tokens: list[list[int]]
    prob: list[list[float]]
    """Their probabilities, if requested."""
    drawn: list[list[list[int]]]
    """Sampled paths, one for each row of `uniform`: [B, N, U]."""


@dataclass(frozen=True)
class Nothing:
    """No query: tokens are only fed."""

    def answer(self, logits_BTV: Array) -> None:
        """Return None."""


@dataclass(frozen=True)
class Logits:
    """All scores, for tools and tests."""

    def answer(self, logits_BTV: Array) -> Array:
        """Return the scores."""
        return logits_BTV


@dataclass(frozen=True)
class Grouped:
    """Different queries for different rows of one batch."""

    parts: "tuple[Part, ...]"

    def answer(self, logits_BTV: Array) -> list[Any]:
        """Return the answers in the order of the parts."""
        return [query.answer(logits_BTV[rows, :places]) for rows, places, query in self.parts]


class Part(NamedTuple):
    """Some rows, the number of their first positions, and the query about these."""

    rows: list[int]
    places: int
    query: Query[Any]


@dataclass(frozen=True)
class Argmax:
    """The token with the largest score; the first of equal ones."""

    forbidden: Forbidden = NOTHING_FORBIDDEN
    log_probs: bool = False
    closeness: float = 0.0
    """Also report positions where another score is within this share of the largest."""

    @property
    def tokens_only(self) -> bool:
        """Whether only tokens are requested."""
        return not self.log_probs and not self.closeness

    def answer(self, logits_BTV: Array) -> Chosen:
        """Return the tokens and the other values requested."""
        total_BT1 = log_total(logits_BTV) if self.log_probs else None
        self.forbidden.apply(logits_BTV)
        best_BT1 = logits_BTV.argmax(-1)[..., None]
        log_probs = near = None
        if total_BT1 is not None:
            log_probs = (pick(logits_BTV, best_BT1) - total_BT1)[..., 0].tolist()
        if self.closeness:
            top_BT1 = pick(logits_BTV, best_BT1)
            margin_BT1 = abs(top_BT1).clip(1) * self.closeness
            near = ((logits_BTV > top_BT1 - margin_BT1).sum(-1) > 1).tolist()
        return Chosen(best_BT1[..., 0].tolist(), log_probs, near)


@dataclass(frozen=True)
class Sample:
    """A token sampled with one number in [0, 1) for each row."""

    sampling: Sampling
    uniform: Sequence[float]
    forbidden: Forbidden = NOTHING_FORBIDDEN
    log_probs: bool = False

    def answer(self, logits_B1V: Array) -> Chosen:
        """Return one token for each row."""
        total_B11 = log_total(logits_B1V) if self.log_probs else None
        self.forbidden.apply(logits_B1V)
        uniform_B1 = like(logits_B1V, self.uniform)[:, None]
        token_B1 = choose(logits_B1V[:, 0], uniform_B1, self.sampling)
        log_probs = None
        if total_B11 is not None:
            log_probs = (pick(logits_B1V, token_B1[..., None]) - total_B11)[..., 0].tolist()
        return Chosen(token_B1.tolist(), log_probs)


@dataclass(frozen=True)
class TopK:
    """The `count` likeliest tokens after each row's one new token, with log-probabilities."""

    count: int
    forbidden: Forbidden = NOTHING_FORBIDDEN

    def answer(self, logits_B1V: Array) -> Best:
        """Return at most the whole vocabulary; forbidden tokens have minus infinity."""
        log_prob_B1V = logits_B1V - log_total(logits_B1V)
        self.forbidden.apply(log_prob_B1V)
        values_BN, places_BN = top(log_prob_B1V[:, 0], self.count)
        return Best(places_BN.tolist(), values_BN.tolist())


@dataclass(frozen=True)
class LogProbs:
    """Log-probabilities of given tokens, one after each token fed."""

    tokens: Sequence[Sequence[int]]
    ends: tuple[int, ...] = ()
    """The first of these stands for any of them."""

    def answer(self, logits_BTV: Array) -> list[list[float]]:
        """Return the log-probabilities [B, T]."""
        tokens_BT1 = like(logits_BTV, self.tokens, "int64")[..., None]
        score_BT1 = pick(logits_BTV, tokens_BT1)
        if len(self.ends) > 1:
            end_BT1 = log_total(logits_BTV[..., list(self.ends)])
            score_BT1 = where(tokens_BT1 == self.ends[0], end_BT1, score_BT1)
        log_probs: list[list[float]] = (score_BT1 - log_total(logits_BTV))[..., 0].tolist()
        return log_probs


@dataclass(frozen=True)
class Path:
    """The likeliest path through the slots of a CTC decoder, and sampled paths."""

    forbidden: Forbidden = NOTHING_FORBIDDEN
    prob: bool = False
    uniform: Sequence[Sequence[Sequence[float]]] | None = None
    """Numbers in [0, 1) for the sampled paths, [B, N, U]."""

    def answer(self, logits_BUV: Array) -> Paths:
        """Return the likeliest token of every slot, and tokens sampled from its likeliest few."""
        self.forbidden.apply(logits_BUV)
        best_BU1 = logits_BUV.argmax(-1)[..., None]
        prob: list[list[float]] = []
        if self.prob:
            log_prob_BU1 = pick(logits_BUV, best_BU1) - log_total(logits_BUV)
            prob = [[math.exp(slot) for slot in row] for row in log_prob_BU1[..., 0].tolist()]
        drawn: list[list[list[int]]] = []
        if self.uniform is not None:
            values_BUC, places_BUC = top(logits_BUV, PATHS_FROM)
            uniform_BUN = like(logits_BUV, self.uniform).swapaxes(1, 2)
            place_BUN = invert(masses(values_BUC), uniform_BUN)
            drawn = pick(places_BUC, place_BUN).swapaxes(1, 2).tolist()
        return Paths(best_BU1[..., 0].tolist(), prob, drawn)
