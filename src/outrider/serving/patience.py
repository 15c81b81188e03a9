"""A connection that says nothing for too long is closed, be it in the middle of its headers.

uvicorn closes connections that are idle between two requests; one that has begun a request and does
not go on would be kept for ever. Bodies have a time of their own (`guard.py`).
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["patient_protocol"]


def patient_protocol(seconds: float) -> type[H11Protocol]:
    """Return uvicorn's protocol with a bound on the time until a request's headers are there."""

    class PatientProtocol(H11Protocol):
        _looker: asyncio.TimerHandle | None = None
        _seen: object = None
        """The request that was the newest when we last looked."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._looker = self.loop.call_later(seconds, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._looker is not None:
                self._looker.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            """Close it unless a request came since we last looked, or one is being answered."""
            waits = self.conn.their_state is h11.IDLE
            if waits and self.cycle is self._seen:
                self.transport.close()
                return
            self._seen = self.cycle
            self._looker = self.loop.call_later(seconds, self._look)

    return PatientProtocol
