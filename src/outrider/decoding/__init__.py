"""Sessions, searches and draft verification over the `Backend` protocol."""

from typing import TYPE_CHECKING, Any

from outrider.decoding.protocol import Backend, Proposal, State
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.session import Session, Update, decode
from outrider.decoding.statistics import Round, Statistics
from outrider.options import DecodeConfig

if TYPE_CHECKING:
    from outrider.decoding.controller import Controller

__all__ = [
    "Backend",
    "Controller",
    "DecodeConfig",
    "Hypothesis",
    "Proposal",
    "Request",
    "Round",
    "Session",
    "State",
    "Statistics",
    "Update",
    "decode",
]


def __getattr__(name: str) -> Any:
    if name == "Controller":  # imported on first use: most modes need none
        from outrider.decoding.controller import Controller

        return Controller
    raise AttributeError(f"module 'outrider.decoding' has no attribute {name!r}")
