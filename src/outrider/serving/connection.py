"""A protocol for uvicorn with timeouts for stalled clients and fewer writes.

uvicorn closes idle connections between requests only. This protocol also closes connections that
stall within a request header or do not read the response (`guard.py` limits the time of bodies).
Connections without a complete header may occupy a share of all connections; beyond it the oldest of
them is closed.

uvicorn writes head and body separately. Both are joined into one system call, because after each
call this thread waits for the GIL, which the decoding thread holds.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class _Buffered:
    """A transport that joins all writes of one iteration of the event loop."""

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
    """Return uvicorn's protocol with limits for connections without a complete header.

    Args:
        seconds: Time limit of such a connection.
        half_open: Most such connections.
    """
    waiting: dict[H11Protocol, None] = {}
    """Half-open connections, the oldest first."""

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _last_cycle: object = None
        """The newest request at the last check."""
        _unread = 0
        """Unsent bytes of the response at the last check."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(_Buffered(transport, self.loop))  # type: ignore[arg-type]
            self._timer = self.loop.call_later(seconds, self._check)
            self._add_half_open()

        def handle_events(self) -> None:
            super().handle_events()
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._add_half_open()
            else:
                waiting.pop(self, None)

        def _add_half_open(self) -> None:
            """Register an incomplete header; close the oldest if there are too many."""
            waiting.setdefault(self)
            while len(waiting) > half_open:
                oldest = next(iter(waiting))
                del waiting[oldest]
                oldest.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            waiting.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _check(self) -> None:
            """Close the connection if nothing was received or sent since the last check."""
            if self.conn.their_state is h11.IDLE and self.cycle is self._last_cycle:
                self.transport.close()
                return
            unread = self.transport.get_write_buffer_size()
            if unread and unread == self._unread and self.flow.write_paused:
                self.transport.abort()  # close() would wait until it is read
                return
            self._last_cycle, self._unread = self.cycle, unread
            self._timer = self.loop.call_later(seconds, self._check)

    return Connection
