"""The door of the app: bodies have a bound and come in time, forms become JSON, faults stay inside.

A plain ASGI middleware: the body is read here, once, and what is behind sees it whole. Then only a
client that hangs up is left to hear of.
"""

import asyncio
import json
import logging
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.serving.answers import error_answer
from outrider.serving.limits import Limits
from outrider.serving.log import log_request

__all__ = ["Guard"]

logger = logging.getLogger("outrider.serving")

FORM = b"application/x-www-form-urlencoded"
FIELDS = 1_000
"""Fields of a form."""


class Guard:
    """Stands before every route."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        scope["facts"] = {}
        try:
            await self._answer(scope, receive, noted)
        except Exception as error:
            # The message may hold a user's text: say where it happened, not what it said.
            logger.error("%s", _where(error))
            if not status:
                answer = error_answer(
                    scope["path"], 500, "something went wrong inside", kind="server_error"
                )
                await answer(scope, receive, noted)
        finally:
            log_request(scope, status, perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await _read(scope, receive, self._limits.body)
        except TimeoutError:
            answer = error_answer(scope["path"], 408, "the request took too long to arrive")
            answer.headers["Connection"] = "close"
            await answer(scope, receive, send)
            return
        if body is None:
            message = f"the body has more than {self._limits.body:,} bytes; send less at once"
            answer = error_answer(scope["path"], 413, message)
            answer.headers["Connection"] = "close"
            await answer(scope, receive, send)
            return
        scope["facts"]["bytes"] = len(body)
        if _header(scope, b"content-type").startswith(FORM):
            body = _form_to_json(body)
            others = [pair for pair in scope["headers"] if pair[0] not in _ABOUT_BODY]
            about = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            scope["headers"] = others + about
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)


_ABOUT_BODY = (b"content-type", b"content-length")


async def _read(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """Read a body; None where it is too large."""
    length = _header(scope, b"content-length")
    if length.isdigit() and int(length[:20]) > most:
        return None
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            return None
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _form_to_json(body: bytes) -> bytes:
    """Make JSON of a form: a field that comes several times is a list."""
    try:
        pairs = parse_qsl(
            body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS
        )
    except ValueError:
        return b""  # no JSON either, and refused as such
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key not in values:
            values[key] = value
        elif isinstance(values[key], list):
            values[key].append(value)
        else:
            values[key] = [values[key], value]
    return json.dumps(values).encode()


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


def _where(error: BaseException) -> str:
    """Say what kind of fault it was and where, without its message."""
    places, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(error).__name__} at {' '.join(places[-6:])}"
