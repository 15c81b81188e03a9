"""Sampling with temperature, top-k and top-p, one random stream per row.

A row draws its uniform numbers once, from its own seed, and turns number t into token t by the
inverse of the cumulative distribution. So what a row says depends on its seed and its logits alone:
not on its neighbours, their order, or when they finish.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.decoding.config import DecodeConfig
from outrider.decoding.protocol import Backend
from outrider.decoding.request import Hypothesis, Request, row_seed, token_limit
from outrider.decoding.stepwise import decode_stepwise
from outrider.decoding.stream import Stream
from outrider.nn.draw import invert, masses

__all__ = ["distribution", "draw", "sample"]


@torch.inference_mode()
def sample(backend: Backend, requests: Sequence[Request], config: DecodeConfig) -> list[Hypothesis]:
    """Return one drawn hypothesis per request, in order."""
    longest = max((token_limit(backend, request, config) for request in requests), default=0)
    uniform_BT = torch.empty(len(requests), longest, dtype=torch.float64)
    for row, request in enumerate(requests):
        uniform_BT[row] = Stream(row_seed(request, config)).draw(longest)

    def choose(logits_B1V: Tensor, rows: Sequence[int], step: int) -> Tensor:
        uniform_B1 = uniform_BT[rows, step, None].to(logits_B1V.device)
        return draw(logits_B1V[:, 0], uniform_B1, config)

    return decode_stepwise(backend, requests, config, choose)


def draw(logits_BV: Tensor, uniform_B1: Tensor, config: DecodeConfig) -> Tensor:
    """Turn a uniform number in [0, 1) into a token id, [B, 1], by the inverse distribution."""
    mass_BV, ids_BV = _truncate(logits_BV, config)
    place_B1 = invert(mass_BV, uniform_B1)
    return place_B1 if ids_BV is None else ids_BV.gather(-1, place_B1)


def distribution(logits: Tensor, config: DecodeConfig) -> Tensor:
    """Return the probability of every token, [..., V] in float64, under the config's settings."""
    mass, ids = _truncate(logits, config)
    prob = mass / mass.sum(-1, keepdim=True)
    return (
        prob if ids is None else torch.zeros_like(logits, dtype=prob.dtype).scatter_(-1, ids, prob)
    )


def _truncate(logits: Tensor, config: DecodeConfig) -> tuple[Tensor, Tensor | None]:
    """Return what is left to draw from, not normalised, and its token ids if not all in order."""
    ids = None
    if config.top_k is not None:
        logits, ids = logits.topk(min(config.top_k, logits.shape[-1]))
    elif config.top_p is not None:
        logits, ids = logits.sort(descending=True)
    mass = masses(logits, config.temperature)
    if config.top_p is not None:
        # The token that crosses top_p is still in: what counts is the mass before it.
        prob = mass / mass.sum(-1, keepdim=True)
        mass = mass.masked_fill(prob.cumsum(-1) - prob >= config.top_p, 0.0)
    return mass, ids
