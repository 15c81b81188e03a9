"""Greedy decoding: the likeliest next token, every time."""

from collections.abc import Sequence

from outrider.decoding.config import DecodeConfig
from outrider.decoding.mask import TokenMask
from outrider.decoding.protocol import Backend
from outrider.decoding.questions import Likeliest
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.stepwise import decode_stepwise

__all__ = ["greedy"]


def greedy(backend: Backend, requests: Sequence[Request], config: DecodeConfig) -> list[Hypothesis]:
    """Return one hypothesis per request, in order."""
    mask = TokenMask(config, ends=backend.ends)
    late = Likeliest(mask.after([config.min_new_tokens]), config.scores)

    def ask(rows: Sequence[int], step: int) -> Likeliest:
        if step >= config.min_new_tokens:
            return late
        return Likeliest(mask.after([step] * len(rows)), config.scores)

    return decode_stepwise(backend, requests, config, ask)
