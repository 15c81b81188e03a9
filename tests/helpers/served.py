"""Engines, and servers on loopback, in this process."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from outrider.serving.app import build_app
from outrider.serving.engine import Engine
from outrider.serving.registry import Spec
from outrider.serving.run import bind, configure


@contextmanager
def serving(engine: Engine, **options: Any) -> Iterator[str]:
    """A server in a thread of this process; yields its address."""
    listening = bind("127.0.0.1", 0)
    server = uvicorn.Server(configure(build_app(engine, **options), engine.limits))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()


def with_engine(
    specs: Sequence[Spec], test: Callable[[Engine], Awaitable[Any]], **options: Any
) -> Any:
    """Run a coroutine with an engine that loads models on demand."""

    async def run() -> Any:
        engine = Engine(specs, **options)
        await engine.start(load=False)
        try:
            return await test(engine)
        finally:
            await engine.close()

    return asyncio.run(run())
