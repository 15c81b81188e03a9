"""A server: uvicorn with the app in this process, or replicas with Ray Serve.

Replicas are independent and load the models; a response does not depend on the replica. Ray routes
requests, scales the number of replicas and replaces failed ones.

uvicorn closes idle connections between requests only. `Connection` also closes connections that
stall within a request header or do not read the response (`guard.py` limits the time of bodies).
Connections without a complete header may occupy a share of all connections; beyond it the oldest of
them is closed.

uvicorn writes head and body separately. Both are joined into one system call, because after each
call this thread waits for the GIL, which the decoding thread holds.
"""

import asyncio
import dataclasses
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from outrider.errors import ConfigError, MissingExtraError
from outrider.languages import normalise_code
from outrider.runtime.cluster import running_ray
from outrider.serving.app import build_app
from outrider.serving.engine import Engine
from outrider.serving.keys import Keyring
from outrider.serving.limits import Limits, limit_malloc_threshold
from outrider.serving.log import start_logging
from outrider.serving.registry import read_spec
from outrider.text.glossary import read_glossary

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
    guard: bool = True
    """Whether sentences whose translation has a fault are decoded another way."""
    terms: tuple[tuple[str, str, Path], ...] = ()
    """Source and target language and file of each glossary."""
    glossaries: Path | None = None
    """File of the glossaries that clients create; by default beside the keys."""

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
        terms = {
            (normalise_code(one), normalise_code(two)): read_glossary(path, source=one, target=two)
            for one, two, path in self.terms
        }
        beside = None if self.keys is None else self.keys.with_name(f"{self.keys.name}.glossaries")
        return build_app(
            engine,
            keyring=keyring,
            load=self.load,
            guard=self.guard,
            terms=terms,
            glossaries=self.glossaries or beside,
            origins=self.origins,
        )


class _Buffered:
    """A transport that joins all writes of one iteration of the event loop."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._parts:
            data, self._parts = b"".join(self._parts), []
            self._transport.write(data)


def connection_protocol(seconds: float, half_open: int) -> type[H11Protocol]:
    """Return uvicorn's protocol with limits for connections without a complete header.

    Args:
        seconds: Time limit of such a connection.
        half_open: Most such connections.
    """
    waiting: dict[H11Protocol, None] = {}
    """Half-open connections, the oldest first."""

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _last_cycle: object = None
        """The newest request at the last check."""
        _unread = 0
        """Unsent bytes of the response at the last check."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(_Buffered(transport, self.loop))  # type: ignore[arg-type]
            self._timer = self.loop.call_later(seconds, self._check)
            self._add_half_open()

        def handle_events(self) -> None:
            super().handle_events()
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._add_half_open()
            else:
                waiting.pop(self, None)

        def _add_half_open(self) -> None:
            """Register an incomplete header; close the oldest if there are too many."""
            waiting.setdefault(self)
            while len(waiting) > half_open:
                oldest = next(iter(waiting))
                del waiting[oldest]
                oldest.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            waiting.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _check(self) -> None:
            """Close the connection if nothing was received or sent since the last check."""
            if self.conn.their_state is h11.IDLE and self.cycle is self._last_cycle:
                self.transport.close()
                return
            unread = self.transport.get_write_buffer_size()
            if unread and unread == self._unread and self.flow.write_paused:
                self.transport.abort()  # close() would wait until it is read
                return
            self._last_cycle, self._unread = self.cycle, unread
            self._timer = self.loop.call_later(seconds, self._check)

    return Connection


NAME = "outrider"
PURPOSE = "outrider serve --ray"
HEADROOM = 256 << 20
"""Bytes that a replica needs in addition to its weights."""
CHECK = 2.0
"""Seconds between two health checks of a replica."""


def run_replicas(
    service: Service,
    *,
    host: str,
    port: int,
    least: int,
    most: int,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Replicas run on the cluster at `RAY_ADDRESS`, or on a local Ray that is stopped at the end.

    Args:
        service: Configuration of each replica, by default with one thread.
        host: Address to listen at.
        port: Port to listen at.
        least: Fewest replicas.
        most: Most replicas.
        ready: Called when the first replicas are ready.
    """
    if least > most:
        raise ConfigError("--replicas", f"got {least}-{most}, expected the smaller number first")
    threads = service.load_options.get("threads") or 1
    load_options = {**service.load_options, "threads": threads}
    service = dataclasses.replace(service, load_options=load_options)
    with running_ray(PURPOSE):
        serve, stop = _ray_serve(), threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):  # after Ray, which installs its own handlers
            signal.signal(number, lambda *_: stop.set())
        try:
            serve.start(http_options={"host": host, "port": port})
            deployed = serve.deployment(**_options(service, least, most))
            app = serve.ingress(_builder(service))
            serve.run(deployed(app()).bind(), name=NAME, route_prefix="/")
            ready()
            stop.wait()
        finally:
            if os.environ.get("RAY_ADDRESS"):
                serve.delete(NAME)
            else:
                serve.shutdown()


def _options(service: Service, least: int, most: int) -> dict[str, Any]:
    """Return the number of replicas and the resources of each, for Ray."""
    weights = sum(read_spec(model).weights for model in service.models)
    return {
        "name": NAME,
        "max_ongoing_requests": service.limits.connections,
        "autoscaling_config": {
            "min_replicas": least,
            "max_replicas": most,
            "target_ongoing_requests": service.limits.rows,
        },
        "ray_actor_options": {
            "num_cpus": service.load_options["threads"],
            "memory": min(weights, service.memory or weights) + HEADROOM,
        },
        "health_check_period_s": CHECK,
        "graceful_shutdown_timeout_s": service.limits.seconds + 1,
    }


def _builder(service: Service) -> Callable[[], FastAPI]:
    """Return a plain function, as Ray requires."""

    def build() -> FastAPI:
        limit_malloc_threshold()
        return service.build()

    return build


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise MissingExtraError("Ray Serve", "ray", PURPOSE) from error
    return serve
