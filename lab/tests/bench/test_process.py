"""Functions in separate processes: results, failures and cleanup."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from outrider.errors import ConfigError, OutriderError
from outrider_lab.bench.process import Job, JobEndedError, JobError, run_alone


def double(number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


def fail(kind: str) -> None:
    if kind == "user":
        raise ConfigError("train.steps", "got 0, expected 1 or more")
    if kind == "end of file":
        raise EOFError("the file is cut off")
    if kind == "result":
        return lambda: None  # type: ignore[return-value] # cannot be pickled
    os._exit(7)


def echo(pipe: Connection) -> None:
    while True:
        message = pipe.recv()
        if message == "raise":
            raise ValueError("no\n  such thing")
        pipe.send(message)


@pytest.mark.parametrize("preload", [None, ()])
def test_a_function_is_called_in_another_process(preload) -> None:
    answer, process = run_alone(double, 21, preload=preload)
    assert answer == 42
    assert process != os.getpid()


def test_user_error_has_no_traceback() -> None:
    with pytest.raises(JobError, match=r"train.steps: got 0, expected 1 or more") as caught:
        run_alone(fail, "user")
    assert caught.value.trace == ""


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("end of file", "EOFError: the file is cut off"), ("result", "pickle")],
)
def test_unexpected_error_has_a_traceback(kind: str, reason: str) -> None:
    with pytest.raises(JobError, match=reason) as caught:
        run_alone(fail, kind)
    assert "Traceback" in caught.value.trace
    assert not isinstance(caught.value, OutriderError)


def test_process_that_dies_is_a_resource_error() -> None:
    with pytest.raises(JobEndedError, match="its process ended with code 7") as caught:
        run_alone(fail, "die")
    assert isinstance(caught.value, OutriderError)


def test_a_job_answers_until_it_fails_or_is_stopped() -> None:
    with Job(echo) as job:
        assert [job.ask(word) for word in ("one", "two")] == ["one", "two"]
        with pytest.raises(JobError, match="ValueError: no such thing"):
            job.ask("raise")
        with pytest.raises(JobEndedError, match="its process ended with code 0"):
            job.receive()
    assert not job._process.is_alive()


def test_ctrl_c_reaches_only_the_parent() -> None:
    with Job(echo) as job:
        assert job.ask(1) == 1
        assert job._process.pid is not None
        os.kill(job._process.pid, signal.SIGINT)
        assert job.ask(2) == 2
    assert not job._process.is_alive()


def start_and_die(pipe: Connection, preload: tuple[str, ...] | None) -> None:
    """A parent that is killed while its job runs."""
    job = Job(say_who_and_sleep, preload=preload)
    pipe.send(job.receive())
    os.kill(os.getpid(), signal.SIGKILL)


def say_who_and_sleep(pipe: Connection) -> None:
    pipe.send(os.getpid())
    time.sleep(600)


@pytest.mark.parametrize("preload", [None, ("outrider.errors",)])
def test_a_job_ends_with_its_killed_parent(preload) -> None:
    context = multiprocessing.get_context("spawn")  # not a Job, which may have no children
    ours, theirs = context.Pipe()
    parent = context.Process(target=start_and_die, args=(theirs, preload))
    parent.start()
    job = ours.recv()
    parent.join(timeout=30)
    for _ in range(300):
        if not is_running(job):
            return
        time.sleep(0.1)
    os.kill(job, signal.SIGKILL)
    pytest.fail("the job outlived its parent")


def is_running(process: int) -> bool:
    """Whether the process runs; an ended process exists until its exit status is read."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not (stat.is_file() and stat.read_text().rpartition(")")[2].split()[0] == "Z")
