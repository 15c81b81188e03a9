"""Queries that the native core answers itself, without returning scores."""

from collections.abc import Sequence
from typing import Any

from outrider_native import Query

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

EVERYWHERE = 1 << 20
"""More positions than a row can have."""


def to_core(query: object, rows: int) -> list[Query] | None:
    """Convert a query about all of `rows` rows; None if the core does not support it."""
    if isinstance(query, Nothing):
        return []
    if not isinstance(query, Grouped):
        whole = _to_core(query, range(rows), EVERYWHERE)
        return None if whole is None else [whole]
    queries = [_to_core(part.query, part.rows, part.places) for part in query.parts]
    supported = [part for part in queries if part is not None]
    return supported if len(supported) == len(queries) else None


def from_core(query: object, answers: Sequence[tuple[Any, Any]]) -> object:
    """Convert the core's answers to the answer of a query."""
    if isinstance(query, Grouped):
        parts = zip(query.parts, answers, strict=True)
        return [_answer(part.query, *answer) for part, answer in parts]
    return _answer(query, *answers[0]) if answers else None


def _to_core(query: object, rows: Sequence[int], places: int) -> Query | None:
    if isinstance(query, Argmax) and not query.closeness:
        return Query.argmax(rows, places, query.log_probs, *_limits(query.forbidden))
    if isinstance(query, TopK):
        return Query.top_k(rows, query.count, *_limits(query.forbidden))
    if isinstance(query, Sample):
        temperature, top_k, top_p = query.sampling
        options = temperature, top_k or 0, 1.0 if top_p is None else top_p
        limits = _limits(query.forbidden)
        return Query.sample(rows, query.log_probs, *options, query.uniform, *limits)
    if isinstance(query, LogProbs):
        places = min(places, min(map(len, query.tokens), default=0))
        return Query.log_probs(rows, places, query.tokens, query.ends)
    return None


def _limits(forbidden: Forbidden) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    return forbidden.always, forbidden.ends, forbidden.early


def _answer(query: object, tokens: list[list[int]], log_probs: list[list[float]]) -> object:
    if isinstance(query, TopK):
        return Best(tokens, log_probs)
    if isinstance(query, LogProbs):
        return log_probs
    assert isinstance(query, Argmax | Sample)
    return Chosen(tokens, log_probs if query.log_probs else None)
