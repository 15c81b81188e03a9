"""How errors are told: as the API that was asked tells them.

Why a server does not answer: errors that know their status and when to try again.
"""

import logging
import math
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outrider.errors import ConfigError, OutriderError, ResourceError
from outrider.serving.log import ClientGone
from outrider.text.normalise import well_formed

__all__ = [
    "BrokenError",
    "BusyError",
    "LateError",
    "RefusalError",
    "SlowError",
    "TooLargeError",
    "TooManyError",
    "UnauthorisedError",
    "UnknownError",
    "add_error_answers",
    "error_answer",
    "errors_of",
    "refusal_answer",
]


class RefusalError(OutriderError):
    """A request that is not answered, through no fault of the model."""

    status = 422
    kind = "invalid_request_error"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))


class UnauthorisedError(RefusalError):
    """No key, or a wrong one."""

    status, kind = 401, "authentication_error"


class UnknownError(RefusalError):
    """A model or a pair of languages that is not there."""

    status, kind = 404, "not_found_error"


class TooLargeError(RefusalError):
    """A body or a text beyond its bound."""

    status = 413


class SlowError(RefusalError):
    """A client that takes too long to say what it wants."""

    status = 408


class TooManyError(RefusalError):
    """A client that asks more often than its key allows."""

    status, kind = 429, "rate_limit_error"


class BusyError(RefusalError):
    """More work than can be done in time, or a server that is going down."""

    status, kind = 503, "overloaded_error"


class BrokenError(RefusalError):
    """A model that cannot be used, through no fault of whoever asks."""

    status, kind = 503, "server_error"


class LateError(BusyError):
    """A request that was let in and not done in time."""


logger = logging.getLogger("outrider.serving")

OPENAI = "/v1/"
GONE = 499
"""What a proxy's log says where the client left; nobody is there to read it."""
WORDS = 500
"""Characters of a message."""


class ErrorText(BaseModel):
    """An error as LibreTranslate tells it."""

    error: str


class ErrorDetails(BaseModel):
    """What OpenAI tells of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(BaseModel):
    """An error as OpenAI tells it."""

    error: ErrorDetails


STATUSES = {
    400: "The request cannot be read.",
    401: "A key is needed, or is not known.",
    404: "There is no such model, language or path.",
    408: "The request took too long to arrive.",
    413: "The request is too large.",
    422: "Something in the request is wrong; the message names it.",
    429: "The key has asked too often; Retry-After says when to ask again.",
    503: "Too much to do; Retry-After says when to ask again.",
}


def errors_of(prefix: str) -> dict[int | str, dict[str, Any]]:
    """Describe what may go wrong with the routes below a prefix, for the OpenAPI schema."""
    model = ErrorObject if f"{prefix}/".startswith(OPENAI) else ErrorText
    return {status: {"model": model, "description": text} for status, text in STATUSES.items()}


def add_error_answers(app: FastAPI) -> None:
    """Let an app tell what is wrong in one sentence, and nothing of its inside."""
    app.add_exception_handler(OutriderError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientGone, _gone)


def error_answer(
    path: str,
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    key: str | None = None,
    retry_after: int | None = None,
) -> JSONResponse:
    """Tell an error as LibreTranslate does, or below `/v1/` as OpenAI does."""
    # It may repeat a name that the client made up.
    message = " ".join(well_formed(message).split())
    message = message if len(message) <= WORDS else f"{message[:WORDS]}..."
    error: Any = message
    if path.startswith(OPENAI):
        error = {"message": message, "type": kind, "param": key, "code": None}
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return JSONResponse({"error": error}, status, headers)


def refusal_answer(path: str, error: RefusalError) -> JSONResponse:
    """Tell why a request is not answered."""
    return error_answer(
        path, error.status, str(error), kind=error.kind, retry_after=error.retry_after
    )


def _ours(request: Request, error: Exception) -> Response:
    path = request.url.path
    if isinstance(error, RefusalError):
        return refusal_answer(path, error)
    if isinstance(error, ResourceError):
        logger.error("%s", error)
        return error_answer(path, 503, str(error), kind="overloaded_error", retry_after=1)
    key = error.key if isinstance(error, ConfigError) else None
    return error_answer(path, 422, str(error), key=key)


def _invalid(request: Request, error: Exception) -> Response:
    """Name the first field that is wrong; its value is the user's, and is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return error_answer(request.url.path, 422, "the body is not JSON, nor a form")
    key = well_formed(".".join(str(part) for part in first["loc"] if part != "body"))[:100]
    said = str(first["msg"])
    if first["type"] == "extra_forbidden":
        said = "unknown field; /openapi.json lists those of this route"
    message = f"{key}: {said}" if key else said
    return error_answer(request.url.path, 422, message, key=key or None)


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    answer = error_answer(request.url.path, error.status_code, str(error.detail), kind=kind)
    answer.headers.update(error.headers or {})
    return answer


def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=GONE)
