"""Clients that ask a server as fast as it answers, with no more HTTP than they need.

A client of a few lines: what asks shares the machine with what answers, and a library would take as
much of it as a small model does.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from outrider.errors import ResourceError

__all__ = ["Load", "ask_all", "first_tokens"]

PATIENCE = 300.0
"""Seconds for one answer."""


@dataclass
class Load:
    """What became of some requests."""

    seconds: float = 0.0
    """From the first request to the last answer."""
    latencies: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """Answers in the order of the requests."""

    @property
    def speed(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds


def ask_all(url: str, bodies: Sequence[dict[str, Any]], *, clients: int) -> Load:
    """Let so many clients ask for everything, each one request after the other."""
    return asyncio.run(_ask_all(url, bodies, clients))


def first_tokens(url: str, bodies: Sequence[dict[str, Any]], *, clients: int) -> list[float]:
    """Return the seconds until the first word of each streamed answer."""
    return asyncio.run(_first_tokens(url, bodies, clients))


async def _ask_all(url: str, bodies: Sequence[dict[str, Any]], clients: int) -> Load:
    load = Load(texts=[""] * len(bodies))
    left = iter(enumerate(bodies))

    async def one() -> None:
        async with _connect(url) as connection:
            for number, body in left:
                began = perf_counter()
                answer = await connection.post("/translate", body)
                load.latencies.append(perf_counter() - began)
                load.texts[number] = json.loads(answer)["translatedText"]

    began = perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    load.seconds = perf_counter() - began
    return load


async def _first_tokens(url: str, bodies: Sequence[dict[str, Any]], clients: int) -> list[float]:
    waited: list[float] = []
    left: Iterator[dict[str, Any]] = iter(bodies)

    async def one() -> None:
        for body in left:
            async with _connect(url) as connection:
                began = perf_counter()
                await connection.send("/v1/completions", body)
                await connection.until(b"data: ")
                waited.append(perf_counter() - began)
                await connection.until(b"[DONE]")

    await asyncio.gather(*(one() for _ in range(clients)))
    return waited


@asynccontextmanager
async def _connect(url: str) -> AsyncIterator["_Connection"]:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield _Connection(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, path: str, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        self._writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
        await self._writer.drain()

    async def until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readuntil(mark)

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        await self.send(path, body)
        head = await self.until(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").lower().split("\r\n")
        sizes = [line.partition(":")[2] for line in lines if line.startswith("content-length:")]
        async with asyncio.timeout(PATIENCE):
            answer = await self._reader.readexactly(int(sizes[0]) if sizes else 0)
        if " 200 " not in f"{status} ":
            raise ResourceError(f"{path} answered {status!r}: {answer[:200]!r}")
        return answer
