"""Assignment of units to actors and reporting of their errors, without Ray."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.errors import ConfigError, DataError, ResourceError
from outrider.jobs import workers
from outrider.jobs.folder import Unit, Work

UNITS = [Unit(f"train-{n:05d}", "file", rows=n + 1, first=0) for n in range(7)]


class TaskError(Exception):
    cause: Exception


class ActorError(Exception):
    pass


class Ray:
    """A fake Ray: calls run when their result is fetched; the last call finishes first."""

    exceptions = SimpleNamespace(RayTaskError=TaskError, RayActorError=ActorError)

    def __init__(self) -> None:
        self.busy: list[int] = []
        self.options: dict[str, Any] = {}

    def remote(self, **options: Any) -> Callable[[type], Any]:
        self.options = options
        return lambda actor: SimpleNamespace(remote=lambda *given: Actor(actor(*given)))

    def wait(self, calls: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        self.busy.append(len(calls))
        return calls[-num_returns:], calls[:-num_returns]

    def get(self, calls: Any) -> Any:
        if isinstance(calls, list):
            return [self.get(call) for call in calls]
        try:
            return calls()
        except ActorError:
            raise
        except Exception as error:
            told = TaskError()
            told.cause = error
            raise told from None

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, "GPU": 2.0}


class Actor:
    def __init__(self, body: Any) -> None:
        self.load = SimpleNamespace(remote=lambda: lambda: body.load())
        self.do = SimpleNamespace(remote=lambda unit: lambda: body.do(unit))


def run(monkeypatch: pytest.MonkeyPatch, start: Callable[[], Work]) -> tuple[Ray, Any, list[int]]:
    ray, moved = Ray(), []
    monkeypatch.setattr(workers, "running_ray", lambda *_, **__: nullcontext(ray))
    with workers.on_ray(start, workers=3, threads=2) as run:
        return ray, list(run(UNITS, moved.append)), moved


def test_each_unit_is_done_once_and_each_worker_has_one_at_a_time(monkeypatch) -> None:
    done: list[Unit] = []
    ray, outcomes, moved = run(monkeypatch, lambda: lambda unit, _: done.append(unit))
    assert sorted(done, key=UNITS.index) == UNITS
    assert [outcome.unit for outcome in outcomes] == done
    assert ray.busy == [3, 3, 3, 3, 3, 2, 1]
    assert sum(moved) == sum(unit.rows for unit in UNITS)
    assert ray.options["num_cpus"] == 2
    assert ray.options["max_restarts"] == -1
    assert ray.options["max_task_retries"] == workers.RETRIES


def failing(error: Exception) -> Callable[[], Work]:
    def work(unit: Unit, _: Any) -> None:
        if unit == UNITS[2]:
            raise error

    return lambda: work


def test_damaged_input_is_a_result(monkeypatch) -> None:
    _, outcomes, _ = run(monkeypatch, failing(DataError("file: damaged")))
    assert [(one.unit, one.fault) for one in outcomes if one.fault] == [(UNITS[2], "file: damaged")]
    assert len(outcomes) == len(UNITS)


def test_errors_of_a_worker_are_raised_by_the_driver(monkeypatch) -> None:
    with pytest.raises(ResourceError, match="the disk is full"):
        run(monkeypatch, failing(ResourceError("the disk is full")))
    with pytest.raises(TaskError):
        run(monkeypatch, failing(ZeroDivisionError()))

    def start() -> Work:
        raise ResourceError("no memory for the model")

    with pytest.raises(ResourceError, match="no memory for the model"):
        run(monkeypatch, start)


def test_repeated_worker_deaths_give_one_sentence(monkeypatch) -> None:
    message = "train-00002: its worker was killed 4 times, usually for lack of memory; use fewer"
    with pytest.raises(ResourceError, match=message):
        run(monkeypatch, failing(ActorError()))


def test_more_workers_than_gpus_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(workers, "running_ray", lambda *_, **__: nullcontext(Ray()))
    message = "workers: got 3, but Ray has 2 GPUs; each needs one"
    with (
        pytest.raises(ConfigError, match=message),
        workers.on_ray(lambda: print, workers=3, threads=1, gpu=True),
    ):
        pass
