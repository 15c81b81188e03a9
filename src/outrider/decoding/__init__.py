"""Decoding loops as pure functions over a small protocol; they know no weights and no devices."""

from outrider.decoding.beam import beam
from outrider.decoding.config import DecodeConfig
from outrider.decoding.decode import decode
from outrider.decoding.greedy import greedy
from outrider.decoding.parallel import parallel
from outrider.decoding.policy import DraftPolicy
from outrider.decoding.protocol import Backend, Draft, State
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.sample import sample
from outrider.decoding.statistics import Round, Statistics
from outrider.decoding.tandem import tandem

__all__ = [
    "Backend",
    "DecodeConfig",
    "Draft",
    "DraftPolicy",
    "Hypothesis",
    "Request",
    "Round",
    "State",
    "Statistics",
    "beam",
    "decode",
    "greedy",
    "parallel",
    "sample",
    "tandem",
]
