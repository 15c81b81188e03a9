"""A job alone in its process: what it returns, how it fails, and that nothing of it is left."""

import os
import signal
from multiprocessing.connection import Connection

import pytest

from outrider.bench.process import Job, JobEndedError, JobError, run_alone
from outrider.errors import ConfigError, OutriderError


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


def test_what_a_user_can_put_right_has_no_trace() -> None:
    with pytest.raises(JobError, match=r"train.steps: got 0, expected 1 or more") as caught:
        run_alone(fail, "user")
    assert caught.value.trace == ""


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("end of file", "EOFError: the file is cut off"), ("result", "pickle")],
)
def test_a_bug_comes_with_its_trace(kind: str, reason: str) -> None:
    with pytest.raises(JobError, match=reason) as caught:
        run_alone(fail, kind)
    assert "Traceback" in caught.value.trace
    assert not isinstance(caught.value, OutriderError)


def test_a_process_that_dies_is_a_matter_of_resources() -> None:
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


def test_ctrl_c_is_heard_by_the_parent_alone() -> None:
    with Job(echo) as job:
        assert job.ask(1) == 1
        assert job._process.pid is not None
        os.kill(job._process.pid, signal.SIGINT)
        assert job.ask(2) == 2
    assert not job._process.is_alive()
