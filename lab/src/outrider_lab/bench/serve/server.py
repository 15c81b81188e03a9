"""A server in its own process, for the time of a measurement."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import ResourceError

START = 120.0
"""Maximum seconds to start."""
STOP = 90.0
"""Maximum seconds to stop."""


class Server:
    """A running server."""

    def __init__(self, url: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """`process` is None for a server that was started elsewhere."""
        self.url, self.process = url, process

    def memory(self) -> float | None:
        """Return its current memory in MiB, or None if unknown."""
        if self.process is None:
            return None
        path = Path(f"/proc/{self.process.pid}/status")
        try:
            (held,) = re.findall(r"VmRSS:\s+(\d+)", path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return round(int(held) / 1024, 1)


def serve_line(model: str, *options: object) -> list[str]:
    """Return the command that serves a model on the native core, on a free port."""
    line = [
        sys.executable,
        "-m",
        "outrider",
        "serve",
        model,
        "--port",
        "0",
        "--backend",
        "native",
        "--no-guard",
    ]
    return [*line, *map(str, options)]


@contextmanager
def serving(
    log: Path, line: Sequence[str], variables: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a server, wait until it is ready, and stop it; its output goes to a file."""
    environment = os.environ | (variables or {})
    with log.open("wb") as file:  # an unread pipe would block it
        process = subprocess.Popen(  # noqa: S603 - our own commands
            line, stderr=file, stdout=file, env=environment
        )
    try:
        start = time.monotonic()
        while "startup complete" not in (output := log.read_text(encoding="utf-8")):
            if process.poll() is not None or time.monotonic() - start > START:
                raise ResourceError(f"the server did not start: {output[-500:]}")
            time.sleep(0.05)
        yield Server(re.findall(r"listening at (\S+)", output)[0], process)
    finally:
        process.terminate()
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
