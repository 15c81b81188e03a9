"""Run functions in separate processes, with their own threads, memory and crashes.

`run_alone` calls one function in a new process and returns its result. A `Job` is a process that
communicates over a pipe. Jobs ignore Ctrl-C; the parent stops them. They end when the parent is
killed.
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

Returned = TypeVar("Returned")
_JOIN_TIMEOUT = 10.0
"""Seconds to wait for a process to end."""
_MAX_REASON = 300
"""Characters of an error message."""


class JobError(Exception):
    """A job failed; the message is one line."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace
        """The traceback; empty for errors of the user (`OutriderError`)."""


class JobEndedError(JobError, ResourceError):
    """The process ended before it answered, most often killed for lack of memory."""


@dataclass(frozen=True)
class Failure:
    """Sent by a job instead of an answer."""

    reason: str
    trace: str = ""

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Describe an exception that was just caught."""
        if isinstance(error, OutriderError):
            return cls(str(error))
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return cls(reason[:_MAX_REASON], traceback.format_exc())


class Job:
    """The parent's end of a process."""

    def __init__(
        self, body: Callable[..., None], *arguments: Any, preload: Sequence[str] | None = None
    ) -> None:
        """Start `body(pipe, *arguments)`.

        Args:
            body: The function of the process, at module level. `receive` raises its exceptions.
            arguments: Its arguments.
            preload: Modules that take long to import. The process is then forked from a server
                that has imported them once; without any it is spawned.
        """
        context = _context(preload)
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=_run, args=(body, child_end, arguments), daemon=True)
        self._process.start()
        child_end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def send(self, message: Any) -> None:
        """Send a message to the process."""
        try:
            self._pipe.send(message)
        except OSError:
            raise self._ended() from None

    def receive(self) -> Any:
        """Wait for a message of the process; raise `JobError` if it failed."""
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(answer, Failure):
            raise JobError(answer.reason, answer.trace)
        return answer

    def ask(self, message: Any) -> Any:
        """Send a message and wait for the answer."""
        self.send(message)
        return self.receive()

    def wait(self) -> None:
        """Wait some seconds for the process to end."""
        self._process.join(timeout=_JOIN_TIMEOUT)

    def stop(self) -> None:
        """Kill the process."""
        self._pipe.close()
        self._process.kill()
        self._process.join(timeout=_JOIN_TIMEOUT)

    def _ended(self) -> JobEndedError:
        self.wait()
        return JobEndedError(f"its process ended with code {self._process.exitcode}")


def run_alone(
    function: Callable[..., Returned], *arguments: Any, preload: Sequence[str] | None = None
) -> Returned:
    """Call a module-level function in its own process; `preload` as for `Job`."""
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
    """Entry point of every process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        body(pipe, *arguments)
    except Exception as error:
        with suppress(OSError):  # the parent may have ended
            pipe.send(Failure.of(error))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    pipe.send(function(*arguments))
