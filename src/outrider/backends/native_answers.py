"""Questions that the native core answers itself, so that no scores leave it."""

from collections.abc import Sequence
from typing import Any

from outrider_native import Question

from outrider.decoding.queries import (
    Argmax,
    Best,
    Chosen,
    Forbidden,
    Grouped,
    LogProbs,
    Nothing,
    Sample,
    TopK,
)

__all__ = ["from_core", "to_core"]

EVERYWHERE = 1 << 20
"""More places than a row can have."""


def to_core(ask: object, rows: int) -> list[Question] | None:
    """Return a question about all of so many rows as the core is asked it; None if it cannot be."""
    if isinstance(ask, Nothing):
        return []
    if not isinstance(ask, Grouped):
        one = _to_core(ask, range(rows), EVERYWHERE)
        return None if one is None else [one]
    found = [_to_core(part.ask, part.rows, part.places) for part in ask.parts]
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def from_core(ask: object, found: Sequence[tuple[Any, Any]]) -> object:
    """Return what the core has found as the answer to a question."""
    if isinstance(ask, Grouped):
        parts = zip(ask.parts, found, strict=True)
        return [_answer(part.ask, *one) for part, one in parts]
    return _answer(ask, *found[0]) if found else None


def _to_core(ask: object, rows: Sequence[int], places: int) -> Question | None:
    if isinstance(ask, Argmax) and not ask.closeness:
        return Question.likeliest(rows, places, ask.log_probs, *_told(ask.forbidden))
    if isinstance(ask, TopK):
        return Question.top(rows, ask.count, *_told(ask.forbidden))
    if isinstance(ask, Sample):
        temperature, top_k, top_p = ask.sampling
        limits = temperature, top_k or 0, 1.0 if top_p is None else top_p
        return Question.draw(rows, ask.log_probs, *limits, ask.uniform, *_told(ask.forbidden))
    if isinstance(ask, LogProbs):
        places = min(places, min(map(len, ask.tokens), default=0))
        return Question.log_probs(rows, places, ask.tokens, ask.ends)
    return None


def _told(forbidden: Forbidden) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    return forbidden.always, forbidden.ends, forbidden.early


def _answer(ask: object, tokens: list[list[int]], log_probs: list[list[float]]) -> object:
    if isinstance(ask, TopK):
        return Best(tokens, log_probs)
    if isinstance(ask, LogProbs):
        return log_probs
    assert isinstance(ask, Argmax | Sample)
    return Chosen(tokens, log_probs if ask.log_probs else None)
