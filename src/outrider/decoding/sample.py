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
from outrider.decoding.request import Hypothesis, Request, token_limit
from outrider.decoding.stepwise import decode_stepwise

__all__ = ["draw", "sample"]


@torch.inference_mode()
def sample(backend: Backend, requests: Sequence[Request], config: DecodeConfig) -> list[Hypothesis]:
    """Return one drawn hypothesis per request, in order."""
    longest = max((token_limit(backend, request, config) for request in requests), default=0)
    uniform_BT = torch.empty(len(requests), longest, dtype=torch.float64)
    for row, request in enumerate(requests):
        seed = config.seed if request.seed is None else request.seed
        uniform_BT[row].uniform_(generator=torch.Generator().manual_seed(seed))

    def choose(logits_B1V: Tensor, row_B: Tensor, step: int) -> Tensor:
        uniform_B1 = uniform_BT[row_B.to(uniform_BT.device), step, None].to(logits_B1V.device)
        return draw(logits_B1V[:, 0], uniform_B1, config)

    return decode_stepwise(backend, requests, config, choose)


def draw(logits_BV: Tensor, uniform_B1: Tensor, config: DecodeConfig) -> Tensor:
    """Turn a uniform number in [0, 1) into a token id, [B, 1], by the inverse distribution."""
    logits_BV = logits_BV / config.temperature
    ids_BV = None
    if config.top_k is not None:
        logits_BV, ids_BV = logits_BV.topk(min(config.top_k, logits_BV.shape[-1]))
    elif config.top_p is not None:
        logits_BV, ids_BV = logits_BV.sort(descending=True)
    prob_BV = logits_BV.softmax(-1, dtype=torch.float64)
    if config.top_p is not None:
        # The token that crosses top_p is still in: what counts is the mass before it.
        prob_BV = prob_BV.masked_fill(prob_BV.cumsum(-1) - prob_BV >= config.top_p, 0.0)
    cumulative_BV = prob_BV.cumsum(-1)
    # 1 - u lies in (0, 1], so the first entry to reach it always has probability above zero.
    place_B1 = torch.searchsorted(cumulative_BV, (1 - uniform_B1) * cumulative_BV[:, -1:])
    return place_B1 if ids_BV is None else ids_BV.gather(-1, place_B1)
