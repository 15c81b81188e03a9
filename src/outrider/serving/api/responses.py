"""Responses: handlers of errors, and server-sent events."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from outrider.errors import ConfigError, OutriderError, ResourceError
from outrider.serving.api.errors import Problem, error_response, refusal_response
from outrider.serving.request import RefusalError
from outrider.text.normalise import well_formed
from outrider.text.tokenizer import Tokenizer

logger = logging.getLogger("outrider.serving")

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that disconnected; it appears in the log only."""


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


def add_error_handlers(app: FastAPI) -> None:
    """Answer errors with one sentence and without internals."""
    app.add_exception_handler(OutriderError, _outrider_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGone, _client_gone)


def _outrider_error(request: Request, error: Exception) -> Response:
    path = request.scope["path"]
    if isinstance(error, RefusalError):
        return refusal_response(path, error)
    if isinstance(error, ResourceError):
        logger.error("%s", error)
        return error_response(path, Problem(503, str(error), "overloaded_error"), retry_after=1)
    key = error.key if isinstance(error, ConfigError) else None
    return error_response(path, Problem(422, str(error), key=key))


def _validation_error(request: Request, error: Exception) -> Response:
    """Name the first invalid field without its value, which is private."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        problem = Problem(422, "the body is neither JSON nor a form")
        return error_response(request.scope["path"], problem)
    key = well_formed(".".join(str(part) for part in first["loc"] if part != "body"))[:100]
    reason = str(first["msg"])
    if first["type"] == "extra_forbidden":
        reason = "unknown field; /openapi.json lists those of this route"
    message = f"{key}: {reason}" if key else reason
    return error_response(request.scope["path"], Problem(422, message, key=key or None))


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    problem = Problem(error.status_code, str(error.detail), kind)
    response = error_response(request.scope["path"], problem)
    response.headers.update(error.headers or {})
    return response


def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

CONTEXT = 8
"""Tokens of context that are decoded together with new tokens."""

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The texts, whole or as events.",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}
"""Response of a route that may stream, for the OpenAPI schema."""


class TextStream:
    """Converts tokens to text incrementally."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        """Begin after the tokens of a prompt."""
        self._tokenizer = tokenizer
        self._tokens = list(before[-CONTEXT:])
        self._start, self._end = 0, len(self._tokens)
        """The newest tokens whose text was returned; earlier ones are not decoded again."""

    def add(self, tokens: Sequence[int]) -> str:
        """Append tokens and return the new text; incomplete characters are withheld."""
        self._tokens += tokens
        old = self._tokenizer.decode(self._tokens[self._start : self._end])
        text = self._tokenizer.decode(self._tokens[self._start :])
        if len(text) <= len(old):
            return ""
        self._start, self._end = self._end, len(self._tokens)
        return text[len(old) :]


async def started(values: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Wait for the first value, so that an error is raised before the response begins."""
    first = await anext(values, None)

    async def continued() -> AsyncGenerator[Any, None]:
        async with aclosing(values):
            if first is not None:
                yield first
            async for value in values:
                yield value

    return continued()


def event_response(values: AsyncGenerator[Any, None]) -> StreamingResponse:
    """Send values as server-sent events, followed by `[DONE]` as in OpenAI's API."""

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(values):
            try:
                async for value in values:
                    yield b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
            except OutriderError as error:  # the status is already sent
                kind = error.kind if isinstance(error, RefusalError) else "invalid_request_error"
                value = {"error": {"message": str(error), "type": kind, "code": None}}
                yield b"data: " + json.dumps(value).encode() + b"\n\n"
                return
        yield b"data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers=EVENT_HEADERS)
