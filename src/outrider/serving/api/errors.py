"""Errors in the format and with the status codes of the API that was called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import JSONResponse

from outrider.serving.request import RefusalError
from outrider.text.normalise import well_formed

LONGEST = 500
"""Characters of a message."""


class ErrorText(BaseModel):
    """An error of LibreTranslate's API, and of those of MTranServer and the extensions."""

    error: str


class OpenAIDetails(BaseModel):
    """The fields of an error of OpenAI's API."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """An error of OpenAI's API."""

    error: OpenAIDetails


class DeepLError(BaseModel):
    """An error of DeepL's API."""

    message: str


class GoogleReason(BaseModel):
    """The reason of an error of Google's API."""

    message: str
    domain: str
    reason: str


class GoogleDetails(BaseModel):
    """The fields of an error of Google's API."""

    code: int
    message: str
    errors: list[GoogleReason]
    status: str


class GoogleError(BaseModel):
    """An error of Google's API."""

    error: GoogleDetails


@dataclass(frozen=True)
class Problem:
    """A refusal or failure, in no format."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    """Type of the error, as OpenAI names it."""
    key: str | None = None
    """The invalid field."""


@dataclass(frozen=True)
class ErrorFormat:
    """Format of the errors of an API."""

    model: type[BaseModel]
    write: Callable[[Problem], BaseModel]
    statuses: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Status codes of the API, where they differ from ours."""


GOOGLE: Final = {
    400: ("INVALID_ARGUMENT", "badRequest"),
    403: ("PERMISSION_DENIED", "forbidden"),
    404: ("NOT_FOUND", "notFound"),
    413: ("INVALID_ARGUMENT", "uploadTooLarge"),
    429: ("RESOURCE_EXHAUSTED", "rateLimitExceeded"),
    503: ("UNAVAILABLE", "backendError"),
}
"""Status and reason of the errors of Google's API."""


def _text(problem: Problem) -> BaseModel:
    return ErrorText(error=problem.message)


def _openai(problem: Problem) -> BaseModel:
    details = OpenAIDetails(
        message=problem.message, type=problem.kind, param=problem.key, code=None
    )
    return OpenAIError(error=details)


def _deepl(problem: Problem) -> BaseModel:
    return DeepLError(message=problem.message)


def _google(problem: Problem) -> BaseModel:
    status, reason = GOOGLE.get(problem.status, ("INTERNAL", "internalError"))
    reasons = [GoogleReason(message=problem.message, domain="global", reason=reason)]
    details = GoogleDetails(
        code=problem.status, message=problem.message, errors=reasons, status=status
    )
    return GoogleError(error=details)


_BAD = {422: 400}
_FORMATS: Final = {
    "/v1/": ErrorFormat(OpenAIError, _openai, _BAD),
    **dict.fromkeys(("/v2/", "/v3/"), ErrorFormat(DeepLError, _deepl, {422: 400, 401: 403})),
    "/language/translate/v2/": ErrorFormat(GoogleError, _google, {422: 400, 401: 400}),
    "/translate/": ErrorFormat(ErrorText, _text, _BAD),
    "/imme/": ErrorFormat(ErrorText, _text, _BAD),
    "/kiss/": ErrorFormat(ErrorText, _text, _BAD),
}
_LIBRETRANSLATE = ErrorFormat(ErrorText, _text, {422: 400, 401: 403, 404: 400})
_OWN = ErrorFormat(ErrorText, _text)


def _format(path: str) -> ErrorFormat:
    """Return the format of the API of a path."""
    if path in ("/translate", "/detect", "/suggest"):
        return _LIBRETRANSLATE
    place = f"{path}/"
    found = (known for prefix, known in _FORMATS.items() if place.startswith(prefix))
    return next(found, _OWN)


STATUSES: Final = {
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


def error_schemas(path: str) -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of a path, for the OpenAPI schema."""
    known = _format(path)
    schemas: dict[int | str, dict[str, Any]] = {
        status: {"model": known.model, "description": text}
        for status, text in STATUSES.items()
        if status not in known.statuses
    }
    for status, own in known.statuses.items():
        schemas[own] = {"model": known.model, "description": STATUSES[status]}
    if 422 in known.statuses:  # otherwise FastAPI describes a 422 of its own
        schemas["4XX"] = {"model": known.model, "description": "The request is refused."}
    return schemas


def error_response(path: str, problem: Problem, *, retry_after: int | None = None) -> JSONResponse:
    """Return an error in the format of the API of the path."""
    known = _format(path)
    message = " ".join(well_formed(problem.message).split())
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]}..."
    status = known.statuses.get(problem.status, problem.status)
    body = known.write(Problem(status, message, problem.kind, problem.key))
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return JSONResponse(body.model_dump(), status, headers)


def refusal_response(path: str, error: RefusalError) -> JSONResponse:
    """Return the response to a refused request."""
    problem = Problem(error.status, str(error), error.kind)
    return error_response(path, problem, retry_after=error.retry_after)
