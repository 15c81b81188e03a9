"""A server in a process of its own, until what is measured is measured."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import ResourceError

__all__ = ["Server", "serve_line", "serving"]

START = 120.0
"""Seconds that a server may take to start."""
STOP = 90.0
"""Seconds that it may take to end."""


class Server:
    """Where it listens, and what it takes."""

    def __init__(self, url: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """Know a server; one that somebody else has started has no process here."""
        self.url, self.process = url, process

    def memory(self) -> float | None:
        """Return the MiB that it holds now, where the system tells."""
        if self.process is None:
            return None
        path = Path(f"/proc/{self.process.pid}/status")
        try:
            (held,) = re.findall(r"VmRSS:\s+(\d+)", path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return round(int(held) / 1024, 1)


def serve_line(model: str, *options: object) -> list[str]:
    """Return the command that serves a model on the native core, at any port that is free."""
    line = [sys.executable, "-m", "outrider", "serve", model, "--port", "0", "--backend", "native"]
    return [*line, *map(str, options)]


@contextmanager
def serving(log: Path, line: Sequence[str]) -> Iterator[Server]:
    """Start a server, wait until it is up, and end it; what it says goes to a file."""
    with log.open("wb") as file:  # a pipe that nobody reads would stop it
        process = subprocess.Popen(line, stderr=file, stdout=file)  # noqa: S603 - our own commands
    try:
        began = time.monotonic()
        while "startup complete" not in (told := log.read_text(encoding="utf-8")):
            if process.poll() is not None or time.monotonic() - began > START:
                raise ResourceError(f"the server did not start: {told[-500:]}")
            time.sleep(0.05)
        yield Server(re.findall(r"listening at (\S+)", told)[0], process)
    finally:
        process.terminate()
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
