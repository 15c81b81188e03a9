"""Decoding loops as pure functions over a small protocol; they know no weights and no devices."""

from outrider.decoding.beam import beam
from outrider.decoding.config import DecodeConfig
from outrider.decoding.decode import decode
from outrider.decoding.greedy import greedy
from outrider.decoding.protocol import Backend, State
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.sample import sample

__all__ = [
    "Backend",
    "DecodeConfig",
    "Hypothesis",
    "Request",
    "State",
    "beam",
    "decode",
    "greedy",
    "sample",
]
