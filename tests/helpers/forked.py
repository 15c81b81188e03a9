"""The command line in processes forked from one that has imported all modules.

Such a process starts in a few hundredths of a second instead of seconds, so hundreds of attacks fit
into a test run. Its memory and time are limited: a command that exceeds them, hangs or prints a
traceback has failed. Run as a script, this file is the forking process: it reads requests and
writes answers.
"""

import atexit
import contextlib
import gc
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

__all__ = ["Outcome", "attack", "attack_each", "command"]

MEMORY = 1 << 30
"""Bytes that an attacked process may allocate after the fork."""
SECONDS = 15
"""A command with a tiny model takes a tenth of a second."""
CRASHED = 70
SERVERS = 2

tried = 0
"""Number of commands so far."""
seconds = 0.0
"""Their total time."""


class Outcome(NamedTuple):
    """The result of a command; `code` is None if it had to be killed."""

    code: int | None
    out: str
    err: str
    seconds: float


class Server:
    """Forks a process for each command, one at a time."""

    def __init__(self) -> None:
        script = [sys.executable, __file__]
        self.process = subprocess.Popen(
            script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.process.communicate)

    def ask(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@cache
def server(number: int) -> Server:
    return Server()


class Running:
    """A running command."""

    def __init__(
        self,
        arguments: Sequence[object],
        folder: Path,
        *,
        stdin: bytes | None = b"",
        memory: int = MEMORY,
        seconds: float = SECONDS,
        number: int = 0,
    ) -> None:
        self.arguments = [str(argument) for argument in arguments]
        self.streams = TemporaryDirectory()
        self.paths = [f"{self.streams.name}/{name}" for name in ("in", "out", "err")]
        for path, raw in zip(self.paths, (stdin or b"", b"", b""), strict=True):
            Path(path).write_bytes(raw)
        self.server = server(number)
        self.server.ask(
            {
                **{"arguments": self.arguments, "folder": str(folder), "paths": self.paths},
                **{"closed": stdin is None, "memory": memory, "seconds": seconds},
            }
        )

    def outcome(self) -> Outcome:
        """Wait for the end."""
        global tried, seconds
        answer = self.server.answer()
        tried, seconds = tried + 1, seconds + answer["seconds"]
        out, err = (Path(p).read_text(encoding="utf-8", errors="replace") for p in self.paths[1:])
        self.streams.cleanup()
        return Outcome(answer["code"], out, err, answer["seconds"])


def command(*arguments: object, folder: Path, **limits: Any) -> Outcome:
    """Run `outrider ARGUMENTS` in `folder`; with `stdin=None` that stream is closed."""
    return Running(arguments, folder, **limits).outcome()


def attack(*arguments: object, folder: Path, **limits: Any) -> Outcome:
    """Run a command that must succeed or give one error message."""
    running = Running(arguments, folder, **limits)
    return _checked(running, running.outcome())


def attack_each(commands: Iterable[Sequence[object]], folder: Path) -> list[Outcome]:
    """Attack with many commands, two at a time."""
    under_way: list[Running] = []
    outcomes: list[tuple[Running, Outcome]] = []
    for number, arguments in enumerate(commands):
        if len(under_way) == SERVERS:
            oldest = under_way.pop(0)
            outcomes.append((oldest, oldest.outcome()))
        under_way.append(Running(arguments, folder, number=number % SERVERS))
    outcomes += [(running, running.outcome()) for running in under_way]
    return [_checked(running, outcome) for running, outcome in outcomes]


def _checked(running: Running, outcome: Outcome) -> Outcome:
    told = f"{running.arguments}: {outcome.code} after {outcome.seconds:.1f} s\n"
    told += outcome.err[-3000:]
    assert outcome.code is not None, f"hangs: {told}"
    assert "Traceback" not in outcome.err, told
    assert outcome.code in (0, 2), told
    if outcome.code == 2 and "Usage: " not in outcome.out + outcome.err:
        sentence = outcome.err.strip().splitlines()[-1] if outcome.err.strip() else ""
        assert sentence.startswith("outrider: "), told
        assert len(sentence) < 2000, told
    return outcome


def _serve() -> None:
    """Answer requests until the end of the input."""
    _import_everything()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        begun = time.perf_counter()
        child = os.fork()
        if child == 0:
            _run(request)
        code = _wait(child, request["seconds"])
        answers.write(json.dumps({"code": code, "seconds": time.perf_counter() - begun}) + "\n")
        answers.flush()


def _wait(child: int, seconds: float) -> int | None:
    """Return the exit code, or None where the process had to be killed."""
    handle = os.pidfd_open(child)
    ended, _, _ = select.select([handle], [], [], seconds)
    os.close(handle)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


def _import_everything() -> None:
    os.environ.setdefault("OUTRIDER_BACKEND", "torch")
    import torch

    import outrider.cli.main
    import outrider.evaluation.evaluate
    import outrider.runtime
    import outrider.torch.training.run

    torch.set_num_threads(1)
    outrider.cli.main.commands()
    gc.collect()
    gc.freeze()  # a collection in the child would touch, and so copy, inherited pages


def _run(request: dict[str, Any]) -> None:
    """Run one command in this process and exit."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + request["memory"],) * 2)
    os.chdir(request["folder"])
    _redirect(request["paths"], request["closed"])
    from outrider.cli.main import run

    code = CRASHED
    try:
        code = run(request["arguments"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _redirect(paths: Sequence[str], closed: bool) -> None:
    for stream, path in enumerate(paths[1:], start=1):
        os.dup2(os.open(path, os.O_WRONLY), stream)
    if closed:
        os.close(0)
        sys.stdin = None  # type: ignore[assignment] # as Python does where the stream is closed
    else:
        os.dup2(os.open(paths[0], os.O_RDONLY), 0)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8")
    raw = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


if __name__ == "__main__":
    _serve()
