"""Decoding as a session over a small protocol; it knows no weights and no devices."""

from typing import TYPE_CHECKING, Any

from outrider.decoding.controller import Controller
from outrider.decoding.protocol import Backend, Draft, State
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.session import Session, Update, decode
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Round, Statistics

if TYPE_CHECKING:
    from outrider.decoding.config import DecodeConfig

__all__ = [
    "Backend",
    "Controller",
    "DecodeConfig",
    "DecodeSettings",
    "Draft",
    "Hypothesis",
    "Request",
    "Round",
    "Session",
    "State",
    "Statistics",
    "Update",
    "decode",
]


def __getattr__(name: str) -> Any:
    # Looked up on first use: what checks settings takes longer to import than all that decodes.
    if name == "DecodeConfig":
        from outrider.decoding.config import DecodeConfig

        return DecodeConfig
    raise AttributeError(f"module 'outrider.decoding' has no attribute {name!r}")
