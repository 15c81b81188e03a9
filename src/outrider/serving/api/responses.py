"""Responses: errors in the format of the API that was called, and server-sent events."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from outrider.errors import ConfigError, OutriderError, ResourceError
from outrider.serving.request import RefusalError
from outrider.text.normalise import well_formed
from outrider.text.tokenizer import Tokenizer

logger = logging.getLogger("outrider.serving")

OPENAI = "/v1/"
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that disconnected; it appears in the log only."""
LONGEST = 500
"""Characters of a message."""


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


class ErrorText(BaseModel):
    """An error of LibreTranslate's API."""

    error: str


class ErrorDetails(BaseModel):
    """The fields of an error of OpenAI's API."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(BaseModel):
    """An error of OpenAI's API."""

    error: ErrorDetails


STATUSES = {
    400: "The request cannot be read.",
    401: "The API key is missing or unknown.",
    403: "The server does not offer this.",
    404: "The model, language or path does not exist.",
    408: "The request took too long to arrive.",
    413: "The request is too large.",
    422: "A field of the request is invalid; the message names it.",
    429: "The key exceeds its rate limit; retry after Retry-After seconds.",
    503: "The server is overloaded; retry after Retry-After seconds.",
}


def error_schemas(prefix: str) -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of the routes below a prefix, for the OpenAPI schema."""
    model = ErrorObject if f"{prefix}/".startswith(OPENAI) else ErrorText
    return {status: {"model": model, "description": text} for status, text in STATUSES.items()}


def add_error_handlers(app: FastAPI) -> None:
    """Answer errors with one sentence and without internals."""
    app.add_exception_handler(OutriderError, _outrider_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGone, _client_gone)


def error_response(
    path: str,
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    key: str | None = None,
    retry_after: int | None = None,
) -> JSONResponse:
    """Return an error in OpenAI's format below `/v1/`, else in LibreTranslate's."""
    message = " ".join(well_formed(message).split())
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]}..."
    error: Any = message
    if path.startswith(OPENAI):
        error = {"message": message, "type": kind, "param": key, "code": None}
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return JSONResponse({"error": error}, status, headers)


def refusal_response(path: str, error: RefusalError) -> JSONResponse:
    """Return the response to a refused request."""
    return error_response(
        path, error.status, str(error), kind=error.kind, retry_after=error.retry_after
    )


def _outrider_error(request: Request, error: Exception) -> Response:
    path = request.url.path
    if isinstance(error, RefusalError):
        return refusal_response(path, error)
    if isinstance(error, ResourceError):
        logger.error("%s", error)
        return error_response(path, 503, str(error), kind="overloaded_error", retry_after=1)
    key = error.key if isinstance(error, ConfigError) else None
    return error_response(path, 422, str(error), key=key)


def _validation_error(request: Request, error: Exception) -> Response:
    """Name the first invalid field without its value, which is private."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return error_response(request.url.path, 422, "the body is neither JSON nor a form")
    key = well_formed(".".join(str(part) for part in first["loc"] if part != "body"))[:100]
    reason = str(first["msg"])
    if first["type"] == "extra_forbidden":
        reason = "unknown field; /openapi.json lists those of this route"
    message = f"{key}: {reason}" if key else reason
    return error_response(request.url.path, 422, message, key=key or None)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    response = error_response(request.url.path, error.status_code, str(error.detail), kind=kind)
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
