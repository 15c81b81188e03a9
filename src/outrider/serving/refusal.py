"""Why a server does not answer: errors that know their status and when to try again."""

import math

from outrider.errors import OutriderError

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
