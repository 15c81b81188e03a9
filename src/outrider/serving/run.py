"""A server in this process: uvicorn with the app."""

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
from outrider.serving.limits import Limits, limit_malloc_threshold
from outrider.serving.log import start_logging
from outrider.serving.registry import read_spec

SWITCH = 0.001
"""Python's thread switch interval in seconds: short, so that the decoding thread waits less for the
event loop between two steps."""


def bind(host: str, port: int) -> socket.socket:
    """Bind an address before models are loaded; port 0 selects a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only for IPPROTO_TCP; without it, a response of two writes is delayed
    # by 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError("--port", f"cannot listen at {host} {port}: {reason}") from error
    return bound


def configure(app: FastAPI, limits: Limits) -> uvicorn.Config:
    """Configure uvicorn without its access log, which contains user data."""
    return uvicorn.Config(
        app,
        http=connection_protocol(limits.body_seconds, max(1, limits.connections // 2)),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the address of the client is not used
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        lifespan="on",
        ws="none",
    )


def run(app: FastAPI, listening: socket.socket, limits: Limits, *, level: str = "info") -> None:
    """Serve until SIGTERM or SIGINT, then finish the running requests."""
    start_logging(level=level)
    sys.setswitchinterval(SWITCH)
    limit_malloc_threshold()
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again after its shutdown.
        signal.signal(number, lambda *_: None)
    uvicorn.Server(configure(app, limits)).run(sockets=[listening])
    if app.state.fault is not None:
        raise app.state.fault


@dataclass(frozen=True, kw_only=True)
class Service:
    """Configuration of a server, from which any process can build the app."""

    models: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    memory: int | None = None
    idle: float | None = None
    load_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `outrider.load`."""
    keys: Path | None = None
    origins: tuple[str, ...] = ()
    load: bool = True

    def build(self) -> FastAPI:
        """Build the app; the models are loaded when it starts."""
        keyring = None if self.keys is None else Keyring(self.keys)
        specs = [read_spec(model) for model in self.models]
        engine = Engine(
            specs,
            self.limits,
            memory=self.memory,
            idle=self.idle,
            load_options=self.load_options,
        )
        return build_app(engine, keyring=keyring, load=self.load, origins=self.origins)
