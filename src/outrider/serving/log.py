"""The log: a JSON object a line, and never a word that a user sent.

A client that may leave: whatever is done for it then stops.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Coroutine
from typing import Any, TextIO, TypeVar

from starlette.requests import Request
from starlette.types import Scope

__all__ = ["ClientGone", "log_request", "route_of", "start_logging", "while_there"]

requests = logging.getLogger("outrider.requests")

QUIET = ("/health", "/ready", "/metrics")
"""Asked by machines every few seconds; only their failures are worth a line."""


class _Crowd:
    """Requests that were refused at the door: a line a second tells how many."""

    def __init__(self) -> None:
        self._count, self._told = 0, 0.0

    def add(self) -> None:
        self._count += 1
        if (now := time.monotonic()) - self._told >= 1:
            requests.warning("", extra={"values": {"event": "overloaded", "refused": self._count}})
            self._count, self._told = 0, now


_crowd = _Crowd()


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        values: dict[str, Any] = {
            "time": f"{stamp}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
        }
        values |= getattr(record, "values", None) or {"event": record.getMessage()}
        return json.dumps(values, ensure_ascii=False)


def start_logging(stream: TextIO | None = None, level: str = "info") -> None:
    """Write what we and uvicorn have to say as lines of JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Lines())
    for name in ("outrider", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


def route_of(scope: Scope) -> str:
    """Name the route of a request as the app knows it, never as the client wrote it."""
    path = getattr(scope.get("route"), "path", None) or scope.get("overloaded")
    return path if isinstance(path, str) else "unknown"


def log_request(scope: Scope, status: int, seconds: float) -> None:
    """Write one line about a request: where to, how it went, how long it took, how much it was."""
    path = route_of(scope)
    if path in QUIET and status < 400:
        return
    if "overloaded" in scope:
        _crowd.add()
        return
    values = {
        "event": "request",
        "method": scope["method"][:10],
        "route": path,
        "status": status,
        "seconds": round(seconds, 6),
        **scope.get("facts", {}),
    }
    requests.info("", extra={"values": values})


T = TypeVar("T")


class ClientGone(Exception):  # noqa: N818  (nobody made a mistake)
    """The client has hung up."""


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do something for as long as the client waits for it."""
    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientGone
    finally:
        gone.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
