"""ASGI middleware: checks keys and load, limits bodies, converts forms and hides internal errors.

It reads the whole body; afterwards the app receives only the disconnection of the client.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from urllib.parse import parse_qsl

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.serving.api.errors import Problem, error_response, refusal_response
from outrider.serving.api.fields import FIELDS, URLENCODED, form_to_json, is_form
from outrider.serving.api.mtranserver import SINGLE, is_single
from outrider.serving.api.responses import ClientGone
from outrider.serving.keys import Keyring
from outrider.serving.limits import Limits
from outrider.serving.request import RefusalError, SlowError, TooLargeError

logger = logging.getLogger("outrider.serving")

QUERY = 65_536
"""Bytes of a query string that are searched for a key."""
DISCARDED = 64 << 20
"""Bytes of a refused body that are read and discarded."""


OPEN = (
    *("/", "/race", "/health", "/ready", "/metrics", "/languages", "/frontend/settings"),
    *("/openapi.json", "/docs"),
)
"""Paths that need no key: they use no model and return public data only."""
OPEN_BELOW = ("/page/", "/download_file/")
"""All paths below them need no key; the address of a document is secret."""
GOOGLE = "/language/translate/v2"
UPLOADS = ("/translate_file", "/v2/document")
"""Paths that receive a document."""
DECODING = (
    *("/translate", "/translate/batch", SINGLE, "/v2/translate", GOOGLE),
    *("/imme", "/kiss", "/v1/completions", "/v1/chat/completions", "/watch", *UPLOADS),
)
"""Paths that decode; they are refused before parsing while all models are overloaded."""
IN_BODY = ("/translate", "/detect", "/translate_file")
"""Paths whose key may be in the body, as in LibreTranslate's API; they call `admit`."""
IN_AUTHORIZATION = (b"bearer", b"deepl-auth-key")
IN_HEADERS = (b"x-api-key", b"x-api-token", b"x-goog-api-key")
IN_QUERY = ("api_key", "key", "token", "api_token")
"""Places of a key, in the order in which they are searched."""
_BODY_HEADERS = (b"content-type", b"content-length")


class Guard:
    """The middleware around all routes."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        *,
        keyring: Keyring | None = None,
        overload: Callable[[], RefusalError | None],
        record: Callable[[Scope, int, float], None],
    ) -> None:
        """Wrap an app.

        Args:
            app: The app.
            limits: Sizes and times.
            keyring: Valid API keys; None to require none.
            overload: Returns an error while requests that decode are refused.
            record: Called after each request with its scope, its status and its seconds.
        """
        self._app, self._limits, self._keyring = app, limits, keyring
        self._overload, self._record = overload, record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the app, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 0

        async def send_recorded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status < 400 and "key" in scope:  # counted before it is answered
                    self._count(scope)
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        scope["facts"] = {}
        scope["by_name"] = dict(reversed(scope["headers"]))  # the first of equal names
        try:
            self._check_key(scope)
            body = await self._read(scope, receive)
            self._check_load(scope)
            if not body and scope["query_string"] and scope["method"] == "POST":
                body = _query_as_json(scope)
            elif scope["path"] in UPLOADS:
                pass
            elif is_form(kind := scope["by_name"].get(b"content-type", b"")):
                body = _as_json(scope, form_to_json(kind, body))
            if b'"from"' in body and scope["path"] == "/translate" and is_single(body):
                scope["path"] = SINGLE
            await self._app(scope, _replay(body, receive), send_recorded)
        except RefusalError as error:
            response = refusal_response(scope["path"], error)
            if "bytes" in scope["facts"]:
                await response(scope, receive, send_recorded)
            else:
                await self._refuse_unread(response, scope, receive, send_recorded)
        except ClientGone:
            pass
        except Exception as error:
            # The message may contain a user's text, so only the place is logged.
            logger.error("%s", _locate(error))
            if not status:
                problem = Problem(500, "internal server error", "server_error")
                response = error_response(scope["path"], problem)
                await response(scope, receive, send_recorded)
        finally:
            self._record(scope, status, perf_counter() - began)

    def _check_key(self, scope: Scope) -> None:
        """Require a valid key; a missing one is accepted where the body may contain it."""
        path = scope["path"]
        if self._keyring is None or path in OPEN or path.startswith(OPEN_BELOW):
            return
        secret = _read_key(scope)
        if secret is None and path in IN_BODY:
            return
        scope["key"] = key = self._keyring.check(secret)
        scope["facts"]["key"] = key.name

    def _count(self, scope: Scope) -> None:
        """Add the characters of a request to the use of its key."""
        if self._keyring is not None and "characters" in scope["facts"]:
            self._keyring.count(scope["key"], scope["facts"]["characters"])

    def _check_load(self, scope: Scope) -> None:
        """Refuse requests that decode while all models are overloaded."""
        by_query = scope["path"] == GOOGLE and scope["method"] == "GET"
        decodes = scope["path"] in DECODING and (scope["method"] == "POST" or by_query)
        if decodes and (error := self._overload()) is not None:
            scope["overloaded"] = scope["path"]
            raise error

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        limits, length = self._limits, scope["by_name"].get(b"content-length", b"")
        most = limits.document if scope["path"] in UPLOADS else limits.body
        message = f"the body has more than {most:,} bytes; send less at once"
        if length.isdigit() and int(length[:20]) > most:
            raise TooLargeError(message)
        try:
            async with asyncio.timeout(limits.body_seconds * max(1, most // limits.body)):
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
        except TimeoutError as error:
            raise SlowError("the request took too long to arrive") from error
        scope["facts"]["bytes"] = size
        return b"".join(parts)

    async def _refuse_unread(
        self, response: Response, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Refuse a request whose body is not read; the end of the response closes the connection.

        Until then, the rest of the body is read and discarded: closing a connection with unread
        data resets it, and a client that is still sending does not receive the response.
        """

        async def send_open(message: Message) -> None:
            is_body = message["type"] == "http.response.body"
            await send({**message, "more_body": True} if is_body else message)

        response.headers["Connection"] = "close"
        await response(scope, receive, send_open)
        await self._discard(receive)
        await send({"type": "http.response.body"})

    async def _discard(self, receive: Receive) -> None:
        left = DISCARDED
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.body_seconds):
                while left > 0:
                    event = await receive()
                    if not event.get("more_body", False):
                        return
                    left -= len(event["body"])


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body once, then further messages of the client."""
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _query_as_json(scope: Scope) -> bytes:
    """Return the fields of the query as a body; some clients send no other."""
    values = json.loads(form_to_json(URLENCODED, scope["query_string"]))
    fields = {name: value for name, value in values.items() if name not in IN_QUERY}
    return _as_json(scope, json.dumps(fields).encode())


def _as_json(scope: Scope, body: bytes) -> bytes:
    """Change the headers to those of a JSON body."""
    others = [pair for pair in scope["headers"] if pair[0] not in _BODY_HEADERS]
    body_headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope["headers"] = others + body_headers
    return body


def _read_key(scope: Scope) -> str | None:
    """Return the API key, from any place where a client of one of the APIs sends it."""
    headers = scope["by_name"]
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() in IN_AUTHORIZATION and token:
        return token.strip().decode("latin-1")
    for name in IN_HEADERS:
        if value := headers.get(name):
            return value.decode("latin-1")
    query = scope["query_string"][:QUERY].decode("latin-1")
    try:
        pairs = parse_qsl(query, max_num_fields=FIELDS)
    except ValueError:
        return None
    return next((value for key, value in pairs if key in IN_QUERY), None)


def _locate(error: BaseException) -> str:
    """Return the type of an error and the end of its traceback, without its message."""
    places, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(error).__name__} at {' '.join(places[-6:])}"
