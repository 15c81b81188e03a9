"""The first call of every loop: encode the sources and feed the prompts, ragged as they are."""

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.decoding.protocol import Backend, State
from outrider.decoding.request import Request

__all__ = ["prefill"]


def prefill(
    backend: Backend, requests: Sequence[Request], limits: Sequence[int]
) -> tuple[State, Tensor]:
    """Open one row per request and return the logits for its first new token, [B, 1, V]."""
    # The last token of a row is never fed back, so it needs no room; the start token does.
    capacity = max(len(r.prompt) + limit for r, limit in zip(requests, limits, strict=True))
    state = backend.encode([r.source for r in requests], capacity=capacity)
    device = state.length_B.device
    fed = [[backend.start, *r.prompt] for r in requests]
    longest = max(map(len, fed))
    tokens_BT = torch.tensor(
        [row + [backend.pad] * (longest - len(row)) for row in fed], device=device
    )
    ragged = any(len(row) < longest for row in fed)
    count_B = torch.tensor([len(row) for row in fed], device=device) if ragged else None
    return state, backend.extend(tokens_BT, state, count_B=count_B, last=True)
