"""A server in this process: uvicorn around the app, until it is told to stop.

All that a server is told, from which any process can build the app.
"""

import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from outrider.errors import ConfigError
from outrider.serving.app import build_app
from outrider.serving.connection import connection_protocol
from outrider.serving.engine import Engine
from outrider.serving.keys import Keyring
from outrider.serving.limits import Limits, give_memory_back
from outrider.serving.log import start_logging
from outrider.serving.registry import read_spec

__all__ = ["Service", "bind", "configure", "run"]

SWITCH = 0.001
"""Seconds after which a thread that computes in Python lets another on: between two rounds, the one
that decodes should not wait long for the one that talks."""


def bind(host: str, port: int) -> socket.socket:
    """Take an address before anything is loaded; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sends what there is at once; without, an answer of two parts
    # waits 40 ms for the client to acknowledge the first.
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((host, port))
    except (OSError, OverflowError) as error:
        taken.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError("--port", f"cannot listen at {host} {port}: {reason}") from None
    return taken


def _stopped(number: int, frame: object) -> None:
    """Have nothing left to do."""


def configure(app: FastAPI, limits: Limits) -> uvicorn.Config:
    """Say how uvicorn is to run an app: its own log of requests would hold what users send."""
    return uvicorn.Config(
        app,
        http=connection_protocol(limits.body_seconds, max(1, limits.connections // 2)),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody asks who the client is
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        lifespan="on",
        ws="none",
    )


def run(app: FastAPI, listening: socket.socket, limits: Limits, *, level: str = "info") -> None:
    """Answer requests until SIGTERM or SIGINT; those in flight are answered first."""
    start_logging(level=level)
    sys.setswitchinterval(SWITCH)
    give_memory_back()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopped)  # uvicorn raises them again once it has stopped
    uvicorn.Server(configure(app, limits)).run(sockets=[listening])
    if app.state.fault is not None:
        raise app.state.fault


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
