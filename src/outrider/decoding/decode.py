"""One entry for all strategies: the config names the loop."""

from collections.abc import Sequence

from outrider.decoding.beam import beam
from outrider.decoding.config import DecodeConfig
from outrider.decoding.greedy import greedy
from outrider.decoding.protocol import Backend
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.sample import sample

__all__ = ["decode"]


def decode(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each request, best first, in the order of the requests."""
    if config.strategy == "beam":
        return beam(backend, requests, config)
    loop = greedy if config.strategy == "greedy" else sample
    return [[hypothesis] for hypothesis in loop(backend, requests, config)]
