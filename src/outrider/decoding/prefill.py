"""The first call of every loop: encode the sources and feed the prompts, ragged as they are."""

from collections.abc import Sequence
from typing import TypeVar

from outrider.decoding.protocol import Backend, State
from outrider.decoding.questions import Nothing, Question
from outrider.decoding.request import Request

__all__ = ["feed_prompts", "open_for_drafting", "open_rows"]

AnswerT = TypeVar("AnswerT")


def open_rows(backend: Backend, requests: Sequence[Request], limits: Sequence[int]) -> State:
    """Open one row per request; its prompt is not fed yet."""
    return backend.encode([r.source for r in requests], capacity=_capacity(requests, limits))


def feed_prompts(
    backend: Backend, state: State, requests: Sequence[Request], ask: Question[AnswerT]
) -> AnswerT:
    """Answer a question about the first new token of each row."""
    return backend.extend([[backend.start, *r.prompt] for r in requests], state, ask, last=True)


def open_for_drafting(
    backend: Backend, requests: Sequence[Request], limits: Sequence[int], *, block: int
) -> State:
    """Open one row per request with room for a block; the newest token of each is not fed yet."""
    capacity = _capacity(requests, limits) + block
    if backend.max_length is not None:
        capacity = min(capacity, backend.max_length)
    state = backend.encode([r.source for r in requests], capacity=capacity, drafting=True)
    if any(r.prompt for r in requests):
        fed = [[backend.start, *r.prompt][:-1] for r in requests]
        backend.extend(fed, state, Nothing(), last=True)
    return state


def _capacity(requests: Sequence[Request], limits: Sequence[int]) -> int:
    # The last token of a row is never fed back, so it needs no room; the start token does.
    return max(len(r.prompt) + limit for r, limit in zip(requests, limits, strict=True))
