"""All that a server is told, from which any process can build the app."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from outrider.serving.app import build_app
from outrider.serving.engine import Engine
from outrider.serving.keys import Keyring
from outrider.serving.limits import Limits
from outrider.serving.spec import read_spec

__all__ = ["Service"]


@dataclass(frozen=True, kw_only=True)
class Service:
    """Models and how to serve them."""

    models: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    memory: int | None = None
    idle: float | None = None
    place: Mapping[str, Any] = field(default_factory=dict)
    keys: Path | None = None
    origins: tuple[str, ...] = ()
    load: bool = True

    def build(self) -> FastAPI:
        """Look at the models and put an app before them; they are loaded when it starts."""
        keyring = None if self.keys is None else Keyring(self.keys)
        specs = [read_spec(model) for model in self.models]
        engine = Engine(specs, self.limits, memory=self.memory, idle=self.idle, place=self.place)
        return build_app(engine, keyring=keyring, load=self.load, origins=self.origins)
