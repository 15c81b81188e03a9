"""Sampling with temperature, top-k and top-p, one random stream per row.

A row draws its uniform numbers once, from its own seed, and turns number t into token t by the
inverse of the cumulative distribution. So what a row says depends on its seed and its logits alone:
not on its neighbours, their order, or when they finish.
"""

from collections.abc import Sequence

from outrider.decoding.config import DecodeConfig
from outrider.decoding.mask import TokenMask
from outrider.decoding.protocol import Backend
from outrider.decoding.questions import Draw
from outrider.decoding.request import Hypothesis, Request, row_seed
from outrider.decoding.stepwise import decode_stepwise
from outrider.decoding.stream import Stream

__all__ = ["sample"]


def sample(backend: Backend, requests: Sequence[Request], config: DecodeConfig) -> list[Hypothesis]:
    """Return one drawn hypothesis per request, in order."""
    mask = TokenMask(config, ends=backend.ends)
    streams = [Stream(row_seed(request, config)) for request in requests]

    def ask(rows: Sequence[int], step: int) -> Draw:
        uniform = [streams[row].draw() for row in rows]
        forbidden = mask.after([step] * len(rows))
        return Draw(config.sampling, uniform, forbidden, config.scores)

    return decode_stepwise(backend, requests, config, ask)
