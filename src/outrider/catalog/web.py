"""Reading of URLs: HTTPS of public hosts, few redirects, limits of bytes and of time.

The address that the user names (`--index`, `HF_ENDPOINT`) may be plain HTTP and private. Every
other address, also after a redirect, must be HTTPS, and the connected peer a public address.
"""

import http.client
import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from outrider.errors import ModelError, OutriderError, ResourceError

REDIRECTS = 5
SECONDS = 30.0
"""Time limit of connecting and of each read."""
PIECE = 1 << 16
MOVED = {301, 302, 303, 307, 308}


class UnreachableError(ResourceError):
    """A server does not answer, or answers with an error."""

    def __init__(self, url: str, reason: str, status: int = 0) -> None:
        super().__init__(f"{url}: {reason}")
        self.status = status


class RefusedError(ModelError):
    """An address that is never opened."""


@dataclass(frozen=True)
class Web:
    """Opens URLs; `named` is the address that the user named."""

    named: str = ""

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[Any]:
        """Open a URL, following redirects; yields the answer of status 200 or 206."""
        first = url
        for _ in range(REDIRECTS + 1):
            answer = self._open(url, headers or {})
            if answer.status not in MOVED:
                break
            place = answer.headers.get("Location", "")
            answer.close()
            url = urljoin(url, place)
        else:
            raise RefusedError(f"{first}: redirects more than {REDIRECTS} times; name another list")
        with answer:
            if answer.status not in (200, 206):
                reason = f"the server answers {answer.status} ({answer.reason})"
                raise UnreachableError(first, reason, answer.status)
            yield answer

    def read(self, url: str, limit: int) -> bytes:
        """Return the bytes of a URL, at most `limit`."""
        with self.open(url) as answer:
            raw = bytearray()
            for piece in pieces(url, answer):
                raw += piece
                if len(raw) > limit:
                    raise RefusedError(f"{url}: is larger than {limit >> 20} MiB; no list is")
        return bytes(raw)

    def _open(self, url: str, headers: Mapping[str, str]) -> Any:
        parts, named = self._check(url)
        request = Request(url, headers={"User-Agent": "outrider", **headers})  # noqa: S310 (the scheme is checked)
        try:
            return _opener(parts.netloc, named).open(request, timeout=SECONDS)
        except HTTPError as error:
            return error
        except OutriderError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnreachableError(url, f"cannot be reached: {_reason(error)}") from error

    def _check(self, url: str) -> tuple[SplitResult, bool]:
        """Return the parts of a URL that may be opened, and whether its host was named."""
        try:
            parts, named = urlsplit(url), urlsplit(self.named)
            port, host = parts.port, parts.hostname or ""
            same = bool(host) and host == named.hostname
            plain = {parts.scheme, named.scheme} == {"http"}
            origin = same and plain and port == named.port
        except ValueError as error:
            raise RefusedError(f"{url[:200]}: is not a URL: {error}") from error
        if parts.username is not None or not (parts.scheme == "https" or origin):
            fix = "only https is opened, and what --index names"
            raise RefusedError(f"{url[:200]}: is refused: {fix}")
        if not same and not _is_public(host, literal=True):
            raise _private(host)
        return parts, same


def pieces(url: str, answer: Any) -> Iterator[bytes]:
    """Yield the bytes of an answer."""
    while True:
        try:
            piece = answer.read(PIECE)
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(url, f"the connection broke: {_reason(error)}") from error
        if not piece:
            return
        yield piece


def _reason(error: BaseException) -> str:
    inner = error.reason if isinstance(error, URLError) else error
    text = getattr(inner, "strerror", None) or str(inner)
    return " ".join(str(text).split())[:200] or type(error).__name__


def _private(host: str) -> RefusedError:
    return RefusedError(f"{host}: is a private address, which only --index may name; name it there")


def _is_public(host: str, *, literal: bool = False) -> bool:
    """Whether an address is public; a name counts as public if `literal` is set."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return literal and host != "localhost" and not host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_global)


def _opener(netloc: str, named: bool) -> OpenerDirector:
    """Return an opener without redirects and without other schemes than HTTP."""
    opener = OpenerDirector()
    handlers = (ProxyHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor)
    for handler in (*(kind() for kind in handlers), _Http(netloc, named), _Https(netloc, named)):
        opener.add_handler(handler)
    return opener


class _Http(HTTPHandler):
    """Connects by HTTP, and refuses private addresses of hosts that were not named."""

    def __init__(self, netloc: str, named: bool) -> None:
        super().__init__()
        self._netloc, self._named = netloc, named

    def http_open(self, req: Request) -> Any:
        """Open a request; a proxy, which has another host, may be private."""
        free = self._named or req.host != self._netloc
        return self.do_open(_checked(http.client.HTTPConnection, free), req)


class _Https(HTTPSHandler):
    """Connects by HTTPS."""

    def __init__(self, netloc: str, named: bool) -> None:
        super().__init__()
        self._netloc, self._named = netloc, named

    def https_open(self, req: Request) -> Any:
        """Open a request."""
        free = self._named or req.host != self._netloc
        return self.do_open(_checked(http.client.HTTPSConnection, free), req)


def _checked(kind: Callable[..., Any], free: bool) -> Any:
    """Return a maker of connections that check their peer unless `free`."""

    def make(host: str, **options: Any) -> Any:
        connection = kind(host, **options)
        if not free:
            connection._create_connection = _connect_public
        return connection

    return make


def _connect_public(address: tuple[str, int], *rest: Any, **options: Any) -> socket.socket:
    """Connect, and close the connection before anything is sent if the peer is private."""
    connected = socket.create_connection(address, *rest, **options)
    if not _is_public(connected.getpeername()[0]):
        connected.close()
        raise _private(address[0])
    return connected
