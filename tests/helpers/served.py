"""Servers on loopback, in a thread of this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from outrider.serving.app import build_app
from outrider.serving.engine import Engine
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
