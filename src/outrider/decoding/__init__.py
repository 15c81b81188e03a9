"""Decoding as a session over a small protocol; it knows no weights and no devices."""

from outrider.decoding.config import DecodeConfig
from outrider.decoding.decode import decode
from outrider.decoding.policy import DraftPolicy
from outrider.decoding.protocol import Backend, Draft, State
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.session import Session, Update
from outrider.decoding.statistics import Round, Statistics

__all__ = [
    "Backend",
    "DecodeConfig",
    "Draft",
    "DraftPolicy",
    "Hypothesis",
    "Request",
    "Round",
    "Session",
    "State",
    "Statistics",
    "Update",
    "decode",
]
