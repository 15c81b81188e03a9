"""Error responses in the format of the API that was called."""

import logging
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outrider.errors import ConfigError, OutriderError, ResourceError
from outrider.serving.errors import RefusalError
from outrider.serving.log import ClientGone
from outrider.text.normalise import well_formed

logger = logging.getLogger("outrider.serving")

OPENAI = "/v1/"
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that disconnected; it appears in the log only."""
LONGEST = 500
"""Characters of a message."""


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
