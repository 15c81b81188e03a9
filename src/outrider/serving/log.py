"""Log of requests as lines of JSON without user data; cancelling work for disconnected clients."""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Coroutine
from typing import Any, TextIO, TypeVar

from starlette.requests import Request
from starlette.types import Scope

requests = logging.getLogger("outrider.requests")

QUIET = ("/health", "/ready", "/metrics")
"""Paths that are polled; only their failures are logged."""


class _Refusals:
    """Counts requests refused by overload, and logs the count once per second."""

    def __init__(self) -> None:
        self._count, self._logged = 0, 0.0

    def add(self) -> None:
        self._count += 1
        if (now := time.monotonic()) - self._logged >= 1:
            requests.warning("", extra={"values": {"event": "overloaded", "refused": self._count}})
            self._count, self._logged = 0, now


_refusals = _Refusals()


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        values: dict[str, Any] = {
            "time": f"{stamp}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
        }
        values |= getattr(record, "values", None) or {"event": record.getMessage()}
        return json.dumps(values, ensure_ascii=False)


def start_logging(stream: TextIO | None = None, level: str = "info") -> None:
    """Write the logs of Outrider and uvicorn as lines of JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in ("outrider", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


def route_of(scope: Scope) -> str:
    """Return the route template of a request; its actual path may contain user data."""
    path = getattr(scope.get("route"), "path", None) or scope.get("overloaded")
    return path if isinstance(path, str) else "unknown"


def log_request(scope: Scope, status: int, seconds: float) -> None:
    """Log the method, route, status, time and size of a request."""
    path = route_of(scope)
    if path in QUIET and status < 400:
        return
    if "overloaded" in scope:
        _refusals.add()
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


class ClientGone(Exception):  # noqa: N818  (not an error)
    """The client disconnected."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine; cancel it if the client disconnects."""
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        disconnected.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
