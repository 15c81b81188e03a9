"""A job in a process of its own, so that its threads, its memory and its crash are its own too.

`run_alone` calls one function in a new process and returns what it returned. A `Job` is a process
that is talked to over a pipe for as long as it is needed. Jobs do not hear Ctrl-C: the parent does,
and ends them. Where the parent is killed, they end by themselves.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar

from outrider.errors import OutriderError, ResourceError

__all__ = ["Failure", "Job", "JobEndedError", "JobError", "run_alone"]

Returned = TypeVar("Returned")
_PATIENCE = 10.0
"""Seconds a process is given to end by itself."""
_LONGEST = 300
"""Characters of a reason."""


class JobError(Exception):
    """A job failed; the message is one line."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace
        """Where it failed; empty if the user can put it right (an `OutriderError`)."""


class JobEndedError(JobError, ResourceError):
    """The process ended before it answered: most often the system killed it for its memory."""


@dataclass(frozen=True)
class Failure:
    """What a job sends in place of an answer."""

    reason: str
    trace: str = ""

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Describe an exception that was just caught."""
        if isinstance(error, OutriderError):
            return cls(str(error))
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return cls(reason[:_LONGEST], traceback.format_exc())


class Job:
    """The parent's end of a process."""

    def __init__(
        self, body: Callable[..., None], *arguments: Any, preload: Sequence[str] | None = None
    ) -> None:
        """Start `body(pipe, *arguments)`.

        Args:
            body: What the process does; a function of a module. What it raises, `receive` raises.
            arguments: Handed on to it.
            preload: Modules that take long to import. The process is then forked from a server
                that has imported them once; without any it starts from nothing.
        """
        context = _context(preload)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(body, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def send(self, message: Any) -> None:
        """Send something to the process."""
        try:
            self._pipe.send(message)
        except OSError:
            raise self._ended() from None

    def receive(self) -> Any:
        """Wait for what the process sends; raise `JobError` if it failed."""
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(answer, Failure):
            raise JobError(answer.reason, answer.trace)
        return answer

    def ask(self, message: Any) -> Any:
        """Send something and wait for the answer."""
        self.send(message)
        return self.receive()

    def wait(self) -> None:
        """Let the process end by itself, for some seconds."""
        self._process.join(timeout=_PATIENCE)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._pipe.close()
        self._process.kill()
        self._process.join(timeout=_PATIENCE)

    def _ended(self) -> JobEndedError:
        self.wait()
        return JobEndedError(f"its process ended with code {self._process.exitcode}")


def run_alone(
    function: Callable[..., Returned], *arguments: Any, preload: Sequence[str] | None = None
) -> Returned:
    """Call a function of a module in a process of its own; `preload` as for `Job`."""
    with Job(_call, function, arguments, preload=preload) as job:
        answer: Returned = job.receive()
        job.wait()
        return answer


def _context(preload: Sequence[str] | None) -> Any:
    if preload is None or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    return context


def _run(body: Callable[..., None], pipe: Connection, arguments: tuple[Any, ...]) -> None:
    """Body of every process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        body(pipe, *arguments)
    except Exception as error:
        with suppress(OSError):  # nobody may be there to hear it
            pipe.send(Failure.of(error))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    pipe.send(function(*arguments))
