"""The door of the app: bodies have a bound and come in time, forms become JSON, faults stay inside.

A plain ASGI middleware: the body is read here, once, and what is behind sees it whole. Then only a
client that hangs up is left to hear of.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.serving.answers import (
    RefusalError,
    SlowError,
    TooLargeError,
    error_answer,
    refusal_answer,
)
from outrider.serving.fields import FIELDS, form_to_json, is_form
from outrider.serving.keys import Keyring
from outrider.serving.limits import Limits
from outrider.serving.log import ClientGone

__all__ = ["Guard"]

logger = logging.getLogger("outrider.serving")

QUERY = 4_096
"""Bytes of a query that are looked at."""
DISCARDED = 64 << 20
"""Bytes of a refused body that are read and forgotten."""


OPEN = ("/health", "/ready", "/metrics", "/languages", "/frontend/settings", "/openapi.json")
"""Answered without a key: no model is asked, and nothing is told that is not public."""
ASKING = ("/translate", "/v1/completions", "/v1/chat/completions", "/watch")
"""What asks a model; refused here, as early as can be, while all models have too much to do."""
IN_BODY = ("/translate", "/detect")
"""LibreTranslate's clients put the key into the body; these routes call `admit` themselves."""
_ABOUT_BODY = (b"content-type", b"content-length")


class Guard:
    """Stands before every route."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        *,
        keyring: Keyring | None = None,
        public: Sequence[str] = (),
        full: Callable[[], RefusalError | None],
        note: Callable[[Scope, int, float], None],
    ) -> None:
        """Guard an app.

        Args:
            app: What is behind.
            limits: Sizes and times.
            keyring: Who may ask; None for everybody.
            public: Further paths that need no key, such as those of a page; one that ends in `/`
                stands for all below it.
            full: Says whether, and how, whoever asks a model is refused.
            note: Told of every request: its scope, its status and the seconds it took.
        """
        self._app, self._limits, self._keyring = app, limits, keyring
        self._full, self._note = full, note
        self._open = {*OPEN, *(path for path in public if path == "/" or path[-1] != "/")}
        self._below = tuple(path for path in public if path != "/" and path[-1] == "/")

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
            self._check_key(scope)
            body = await self._read(scope, receive)
            self._check_load(scope)
            await self._app(scope, _again(_as_json(scope, body), receive), noted)
        except RefusalError as error:
            answer = refusal_answer(scope["path"], error)
            unread = "bytes" not in scope["facts"]
            if unread:
                answer.headers["Connection"] = "close"
            await answer(scope, receive, noted)
            if unread:
                await self._discard(receive)
        except ClientGone:
            pass
        except Exception as error:
            # The message may hold a user's text: say where it happened, not what it said.
            logger.error("%s", _where(error))
            if not status:
                message = "something went wrong inside"
                answer = error_answer(scope["path"], 500, message, kind="server_error")
                await answer(scope, receive, noted)
        finally:
            self._note(scope, status, perf_counter() - began)

    def _check_key(self, scope: Scope) -> None:
        """Refuse who has no key, unless it may stand in the body."""
        path = scope["path"]
        if self._keyring is None or path in self._open or path.startswith(self._below or "\0"):
            return
        given = _given_key(scope)
        if given is None and path in IN_BODY:
            return
        scope["key"] = key = self._keyring.check(given)
        scope["facts"]["key"] = key.name

    def _check_load(self, scope: Scope) -> None:
        """Refuse who asks a model while there is too much to do."""
        asks = scope["method"] == "POST" and scope["path"] in ASKING
        if asks and (error := self._full()) is not None:
            scope["overloaded"] = scope["path"]
            raise error

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        most, length = self._limits.body, _header(scope, b"content-length")
        message = f"the body has more than {most:,} bytes; send less at once"
        if length.isdigit() and int(length[:20]) > most:
            raise TooLargeError(message)
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                parts, size, more = [], 0, True
                while more:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        raise ClientGone
                    size += len(event.get("body", b""))
                    if size > most:
                        raise TooLargeError(message)
                    parts.append(event.get("body", b""))
                    more = event.get("more_body", False)
        except TimeoutError:
            raise SlowError("the request took too long to arrive") from None
        scope["facts"]["bytes"] = size
        return b"".join(parts)

    async def _discard(self, receive: Receive) -> None:
        """Read on for a while: who is still sending would not hear what is wrong."""
        left = DISCARDED
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while left > 0:
                    event = await receive()
                    if not event.get("more_body", False):
                        return
                    left -= len(event["body"])
        except TimeoutError:
            return


def _again(body: bytes, receive: Receive) -> Receive:
    """Let a body that was read be received once more, and then only what comes after it."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _as_json(scope: Scope, body: bytes) -> bytes:
    """Turn a form into JSON, for one way of reading both."""
    kind = _header(scope, b"content-type")
    if not is_form(kind):
        return body
    body = form_to_json(kind, body)
    others = [pair for pair in scope["headers"] if pair[0] not in _ABOUT_BODY]
    about = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope["headers"] = others + about
    return body


def _given_key(scope: Scope) -> str | None:
    """Return the key of a header, or of the query as LibreTranslate's clients may send it."""
    scheme, _, token = _header(scope, b"authorization").partition(b" ")
    if scheme.lower() == b"bearer" and token:
        return token.strip().decode("latin-1")
    if own := _header(scope, b"x-api-key"):
        return own.decode("latin-1")
    query = scope["query_string"][:QUERY].decode("latin-1")
    try:
        pairs = parse_qsl(query, max_num_fields=FIELDS)
    except ValueError:
        return None
    return next((value for key, value in pairs if key == "api_key"), None)


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
