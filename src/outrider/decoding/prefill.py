"""The first call of every loop: encode the sources and feed the prompts, ragged as they are."""

from collections.abc import Sequence

from torch import Tensor

from outrider.decoding.ids import to_ids
from outrider.decoding.protocol import Backend, State
from outrider.decoding.request import Request

__all__ = ["feed_prompts", "open_for_drafting", "open_rows", "prefill"]


def prefill(
    backend: Backend, requests: Sequence[Request], limits: Sequence[int]
) -> tuple[State, Tensor]:
    """Open one row per request and return the logits for its first new token, [B, 1, V]."""
    state = open_rows(backend, requests, limits)
    return state, feed_prompts(backend, state, requests)


def open_rows(backend: Backend, requests: Sequence[Request], limits: Sequence[int]) -> State:
    """Open one row per request; its prompt is not fed yet."""
    return backend.encode([r.source for r in requests], capacity=_capacity(requests, limits))


def feed_prompts(backend: Backend, state: State, requests: Sequence[Request]) -> Tensor:
    """Return the logits for the first new token of each row, [B, 1, V]."""
    return _feed(backend, state, [[backend.start, *r.prompt] for r in requests])


def open_for_drafting(
    backend: Backend, requests: Sequence[Request], limits: Sequence[int], *, block: int
) -> State:
    """Open one row per request with room for a block; the newest token of each is not fed yet."""
    capacity = _capacity(requests, limits) + block
    if backend.max_length is not None:
        capacity = min(capacity, backend.max_length)
    state = backend.encode([r.source for r in requests], capacity=capacity, drafting=True)
    if any(r.prompt for r in requests):
        _feed(backend, state, [[backend.start, *r.prompt][:-1] for r in requests])
    return state


def _capacity(requests: Sequence[Request], limits: Sequence[int]) -> int:
    # The last token of a row is never fed back, so it needs no room; the start token does.
    return max(len(r.prompt) + limit for r, limit in zip(requests, limits, strict=True))


def _feed(backend: Backend, state: State, fed: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, fed))
    padded = [[*row, *[backend.pad] * (longest - len(row))] for row in fed]
    device = state.length_B.device
    ragged = any(len(row) < longest for row in fed)
    count_B = to_ids([len(row) for row in fed], device) if ragged else None
    tokens_BT = to_ids(padded, device)
    return backend.extend(tokens_BT, state, count_B=count_B, last=True)
