"""uvicorn's connections, with two habits: they lose patience, and they do not talk in bits.

uvicorn closes connections that are idle between two requests; one that has begun a request and does
not go on would be kept for ever, and so would one that does not read its answer. Bodies have a time
of their own (`guard.py`). Half-open connections, which are new or have sent a part of a header, may
hold a part of all places; beyond it, the one that has been so for the longest is closed.

uvicorn also sends a head and a body apart: two calls of the system, and after each this thread
waits for the one that decodes.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["connection_protocol"]


class _Gathering:
    """A transport that sends what is written in one go of the event loop at once."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._parts:
            data, self._parts = b"".join(self._parts), []
            self._transport.write(data)


def connection_protocol(seconds: float, half_open: int) -> type[H11Protocol]:
    """Return uvicorn's protocol with bounds on requests whose header is not complete.

    Args:
        seconds: After which such a connection is closed.
        half_open: How many there may be at once.
    """
    waiting: dict[H11Protocol, None] = {}
    """Half-open connections, the oldest first."""

    class Connection(H11Protocol):
        _looker: asyncio.TimerHandle | None = None
        _seen: object = None
        """The request that was the newest when we last looked."""
        _unread = 0
        """Bytes that the client had not taken then."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(_Gathering(transport, self.loop))  # type: ignore[arg-type]
            self._looker = self.loop.call_later(seconds, self._look)
            self._wait()

        def handle_events(self) -> None:
            super().handle_events()
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._wait()
            else:
                waiting.pop(self, None)

        def _wait(self) -> None:
            """Note that the header is not complete, and make room for it."""
            waiting.setdefault(self)
            while len(waiting) > half_open:
                oldest = next(iter(waiting))
                del waiting[oldest]
                oldest.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            waiting.pop(self, None)
            if self._looker is not None:
                self._looker.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            """End it if nothing came since we last looked, nor was taken of an answer."""
            waits = self.conn.their_state is h11.IDLE
            if waits and self.cycle is self._seen:
                self.transport.close()
                return
            unread = self.transport.get_write_buffer_size()
            if unread and unread == self._unread and self.flow.write_paused:
                self.transport.abort()  # closing would wait for it to be read
                return
            self._seen, self._unread = self.cycle, unread
            self._looker = self.loop.call_later(seconds, self._look)

    return Connection
