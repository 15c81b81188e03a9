"""Greedy decoding: the likeliest next token, every time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.decoding.config import DecodeConfig
from outrider.decoding.likeliest import likeliest, shortcut
from outrider.decoding.protocol import Backend
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.stepwise import decode_stepwise

__all__ = ["greedy"]


@torch.inference_mode()
def greedy(backend: Backend, requests: Sequence[Request], config: DecodeConfig) -> list[Hypothesis]:
    """Return one hypothesis per request, in order."""
    past_logits = shortcut(backend, config)
    return decode_stepwise(backend, requests, config, _likeliest, past_logits=past_logits)


def _likeliest(logits_B1V: Tensor, rows: Sequence[int], step: int) -> Tensor:
    return likeliest(logits_B1V)
