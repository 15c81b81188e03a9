"""Sessions, searches and draft verification over the `Backend` protocol."""

from typing import TYPE_CHECKING, Any

from outrider.decoding.protocol import Backend, Draft, State
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.session import Session, Update, decode
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Round, Statistics

if TYPE_CHECKING:
    from outrider.decoding.config import DecodeConfig
    from outrider.decoding.controller import Controller

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
    # Imported on first use: pydantic takes longer to import than all of decoding.
    if name == "DecodeConfig":
        from outrider.decoding.config import DecodeConfig

        return DecodeConfig
    if name == "Controller":
        from outrider.decoding.controller import Controller

        return Controller
    raise AttributeError(f"module 'outrider.decoding' has no attribute {name!r}")
