"""What a loop asks about the scores that follow the tokens it feeds.

A question is a value with the answer written out for an array of scores [B, T, V]. A backend
computes the scores and calls `answer` on them where they are; one that can do better, such as
naming the likeliest word while its scores are still in the cache, looks at the question first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from outrider.decoding.arrays import Array, forbid, like, log_total, pick, top, where
from outrider.decoding.sampling import Sampling, choose
from outrider.inverse_cdf import invert, masses

__all__ = [
    "NOTHING_FORBIDDEN",
    "Argmax",
    "Best",
    "Chosen",
    "Forbidden",
    "Grouped",
    "LogProbs",
    "Logits",
    "Nothing",
    "Part",
    "Path",
    "Paths",
    "Query",
    "Sample",
    "TopK",
]

AnswerT_co = TypeVar("AnswerT_co", covariant=True)

PATHS_FROM = 8
"""Tokens of a slot that a further path can be drawn from: its likeliest."""


class Query(Protocol[AnswerT_co]):
    """Something to be known of scores."""

    def answer(self, logits_BTV: Array) -> AnswerT_co:
        """Return a few numbers; the scores may be overwritten."""
        ...


@dataclass(frozen=True)
class Forbidden:
    """Tokens that must not be said."""

    always: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    """Tokens that end a text."""
    early: tuple[int, ...] = ()
    """For each row, at how many of the places that follow it must not end yet; empty for none."""

    def apply(self, scores_BTV: Array) -> None:
        """Write minus infinity over what is forbidden."""
        forbid(scores_BTV, self.always)
        for row, places in enumerate(self.early):
            if places:
                forbid(scores_BTV[row, :places], self.ends)

    def everywhere(self, places: int) -> tuple[int, ...] | None:
        """Return what is forbidden at each of so many places of every row; None if that differs."""
        if not any(self.early):
            return self.always
        return (*self.always, *self.ends) if min(self.early) >= places else None


NOTHING_FORBIDDEN = Forbidden()


class Chosen(NamedTuple):
    """The tokens that were chosen, row by row and place by place."""

    tokens: list[list[int]]
    log_probs: list[list[float]] | None = None
    """Their log-probabilities, if asked for: of all tokens, the forbidden ones included."""
    near: list[list[bool]] | None = None
    """Whether another token was nearly as likely, if asked for."""


class Best(NamedTuple):
    """The likeliest tokens of every row, best first."""

    tokens: list[list[int]]
    log_probs: list[list[float]]


class Paths(NamedTuple):
    """What the slots of every row say."""

    tokens: list[list[int]]
    prob: list[list[float]]
    """How likely each is, if asked for."""
    drawn: list[list[list[int]]]
    """Further paths, as many as there were numbers for: [B, N, U]."""


@dataclass(frozen=True)
class Nothing:
    """No question: the tokens are only taken in."""

    def answer(self, logits_BTV: Array) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Logits:
    """All scores: for tools and tests, never for loops."""

    def answer(self, logits_BTV: Array) -> Array:
        """Hand them out."""
        return logits_BTV


@dataclass(frozen=True)
class Grouped:
    """Different questions about different rows of one batch."""

    parts: "tuple[Part, ...]"

    def answer(self, logits_BTV: Array) -> list[Any]:
        """Answer one after the other."""
        return [ask.answer(logits_BTV[rows, :places]) for rows, places, ask in self.parts]


class Part(NamedTuple):
    """Some rows and what is asked about each of their first places."""

    rows: list[int]
    places: int
    ask: Query[Any]


@dataclass(frozen=True)
class Argmax:
    """Which token has the largest score, the first of equals."""

    forbidden: Forbidden = NOTHING_FORBIDDEN
    log_probs: bool = False
    closeness: float = 0.0
    """Also say where another score comes as near to the largest as this share of it."""

    @property
    def tokens_only(self) -> bool:
        """Whether nothing but the tokens is wanted."""
        return not self.log_probs and not self.closeness

    def answer(self, logits_BTV: Array) -> Chosen:
        """Return the tokens, and what else was asked for."""
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
    """A token drawn with a number in [0, 1) for each row."""

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
    """The likeliest `count` tokens after each row's one new token, with log-probabilities."""

    count: int
    forbidden: Forbidden = NOTHING_FORBIDDEN

    def answer(self, logits_B1V: Array) -> Best:
        """Return fewer where the vocabulary is smaller; what is forbidden has minus infinity."""
        log_prob_B1V = logits_B1V - log_total(logits_B1V)
        self.forbidden.apply(log_prob_B1V)
        values_BN, places_BN = top(log_prob_B1V[:, 0], self.count)
        return Best(places_BN.tolist(), values_BN.tolist())


@dataclass(frozen=True)
class LogProbs:
    """How likely given tokens are, one after each that was fed."""

    tokens: Sequence[Sequence[int]]
    ends: tuple[int, ...] = ()
    """Where the first of these is given, any of them will do."""

    def answer(self, logits_BTV: Array) -> list[list[float]]:
        """Return log-probabilities, [B, T]."""
        tokens_BT1 = like(logits_BTV, self.tokens, "int64")[..., None]
        score_BT1 = pick(logits_BTV, tokens_BT1)
        if len(self.ends) > 1:
            end_BT1 = log_total(logits_BTV[..., list(self.ends)])
            score_BT1 = where(tokens_BT1 == self.ends[0], end_BT1, score_BT1)
        found: list[list[float]] = (score_BT1 - log_total(logits_BTV))[..., 0].tolist()
        return found


@dataclass(frozen=True)
class Path:
    """What each slot of a CTC decoder says, and what else it might have said."""

    forbidden: Forbidden = NOTHING_FORBIDDEN
    prob: bool = False
    uniform: Sequence[Sequence[Sequence[float]]] | None = None
    """Numbers in [0, 1) for further paths, [B, N, U]."""

    def answer(self, logits_BUV: Array) -> Paths:
        """Return the likeliest token of every slot, and tokens drawn from its likeliest few."""
        self.forbidden.apply(logits_BUV)
        best_BU1 = logits_BUV.argmax(-1)[..., None]
        prob: list[list[float]] = []
        if self.prob:
            log_prob_BU1 = pick(logits_BUV, best_BU1) - log_total(logits_BUV)
            prob = [[math.exp(one) for one in row] for row in log_prob_BU1[..., 0].tolist()]
        drawn: list[list[list[int]]] = []
        if self.uniform is not None:
            values_BUC, places_BUC = top(logits_BUV, PATHS_FROM)
            uniform_BUN = like(logits_BUV, self.uniform).swapaxes(1, 2)
            place_BUN = invert(masses(values_BUC), uniform_BUN)
            drawn = pick(places_BUC, place_BUN).swapaxes(1, 2).tolist()
        return Paths(best_BU1[..., 0].tolist(), prob, drawn)
