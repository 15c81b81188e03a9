"""Load generator: HTTP clients with minimal overhead.

Clients share the machine with the server, and an HTTP library would need as much time as a small
model.
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

TIMEOUT = 300.0
"""Seconds per answer."""


@dataclass
class Load:
    """Results of a sequence of requests."""

    seconds: float = 0.0
    """From the first request to the last answer."""
    latencies: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """Answers in the order of the requests."""
    equal: int = 0
    """Answers that equal expected texts, if the caller compares them."""

    @property
    def speed(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds


def ask_all(url: str, bodies: Sequence[dict[str, Any]], *, clients: int) -> Load:
    """Send all requests from this many concurrent clients."""
    return asyncio.run(_ask_all(url, bodies, clients))


def first_tokens(url: str, bodies: Sequence[dict[str, Any]], *, clients: int) -> list[float]:
    """Return the seconds until the first token of each streamed answer."""
    return asyncio.run(_first_tokens(url, bodies, clients))


async def _ask_all(url: str, bodies: Sequence[dict[str, Any]], clients: int) -> Load:
    load = Load(texts=[""] * len(bodies))
    remaining = iter(enumerate(bodies))

    async def client() -> None:
        async with _connect(url) as connection:
            for number, body in remaining:
                start = perf_counter()
                answer = await connection.post("/translate", body)
                load.latencies.append(perf_counter() - start)
                load.texts[number] = json.loads(answer)["translatedText"]

    start = perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = perf_counter() - start
    return load


async def _first_tokens(url: str, bodies: Sequence[dict[str, Any]], clients: int) -> list[float]:
    latencies: list[float] = []
    remaining: Iterator[dict[str, Any]] = iter(bodies)

    async def client() -> None:
        for body in remaining:
            async with _connect(url) as connection:
                start = perf_counter()
                await connection.send("/v1/completions", body)
                await connection.until(b"data: ")
                latencies.append(perf_counter() - start)
                await connection.until(b"[DONE]")

    await asyncio.gather(*(client() for _ in range(clients)))
    return latencies


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
        async with asyncio.timeout(TIMEOUT):
            return await self._reader.readuntil(mark)

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        await self.send(path, body)
        head = await self.until(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").lower().split("\r\n")
        sizes = [line.partition(":")[2] for line in lines if line.startswith("content-length:")]
        async with asyncio.timeout(TIMEOUT):
            answer = await self._reader.readexactly(int(sizes[0]) if sizes else 0)
        if " 200 " not in f"{status} ":
            raise ResourceError(f"{path} answered {status!r}: {answer[:200]!r}")
        return answer
