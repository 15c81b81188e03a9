"""Errors of the server, with their HTTP status and the seconds after which to try again."""

import math

from outrider.errors import OutriderError


class RefusalError(OutriderError):
    """A request that the server refuses before or without decoding."""

    status = 422
    kind = "invalid_request_error"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))


class UnauthorisedError(RefusalError):
    """The API key is missing or wrong."""

    status, kind = 401, "authentication_error"


class UnknownError(RefusalError):
    """The model or language pair does not exist."""

    status, kind = 404, "not_found_error"


class TooLargeError(RefusalError):
    """The body or the text exceeds its limit."""

    status = 413


class SlowError(RefusalError):
    """The client takes too long to send its request."""

    status = 408


class TooManyError(RefusalError):
    """The client exceeds the rate limit of its key."""

    status, kind = 429, "rate_limit_error"


class BusyError(RefusalError):
    """The server is overloaded or shutting down."""

    status, kind = 503, "overloaded_error"


class BrokenError(RefusalError):
    """A model or the key file cannot be used."""

    status, kind = 503, "server_error"


class LateError(BusyError):
    """An admitted request exceeded its deadline."""
