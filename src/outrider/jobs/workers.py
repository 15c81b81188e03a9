"""Who does the units of a job: this process, or actors of Ray that each hold the model.

An actor has one unit at a time and is handed the next when it is done. Ray starts a killed one
again and gives it its unit once more, so a kill costs at most that unit.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from outrider.errors import ConfigError, OutriderError, ResourceError
from outrider.jobs.unit import Advance, Outcome, Unit, Work, attempt
from outrider.runtime.cluster import running_ray
from outrider.runtime.device import choose_device

__all__ = ["Run", "hired", "in_process", "on_ray"]

Run = Callable[[Iterable[Unit], Advance], Iterator[Outcome]]
"""Does units, in whatever order they end."""
RETRIES = 3
"""How often a unit is given out again whose worker ended."""
STORE_BYTES = 100 << 20
"""Ray's memory for objects; nothing of a job lies there."""


def hired(
    work: Work | None, start: Callable[[], Work], *, workers: int, threads: int, device: str
) -> AbstractContextManager[Run]:
    """Have this process do `work`, where there is one worker, or else as many actors of Ray."""
    if workers == 1:
        assert work is not None
        return nullcontext(in_process(work))
    gpu = choose_device(device).startswith("cuda")
    return on_ray(start, workers=workers, threads=threads, gpu=gpu)


def in_process(work: Work) -> Run:
    """Do the units one after another, here."""
    return lambda units, advance: (attempt(work, unit, advance) for unit in units)


@contextmanager
def on_ray(
    start: Callable[[], Work], *, workers: int, threads: int, gpu: bool = False
) -> Iterator[Run]:
    """Have `workers` actors ready, each with its own `start()`.

    Args:
        start: Loads what a worker needs; a function of a module, or a `partial` of one.
        workers: How many.
        threads: CPUs that Ray counts for each.
        gpu: Whether each has a GPU of its own.
    """
    with running_ray(
        "--workers", num_cpus=workers * threads, object_store_memory=STORE_BYTES
    ) as ray:
        if gpu and (found := int(ray.cluster_resources().get("GPU", 0))) < workers:
            raise ConfigError("workers", f"got {workers}, but Ray has {found} GPUs; each needs one")
        options = {"num_cpus": threads, "num_gpus": int(gpu), "max_restarts": -1}
        actor = ray.remote(**options, max_task_retries=RETRIES)(_Worker)
        actors = [actor.remote(start) for _ in range(workers)]
        with _explained(ray):
            ray.get([one.load.remote() for one in actors])
        yield lambda units, advance: _run(ray, actors, units, advance)


class _Worker:
    """Loads on its first call, so that what fails is told as any other error."""

    def __init__(self, start: Callable[[], Work]) -> None:
        self._start = start
        self._work: Work | None = None

    def load(self) -> None:
        self._loaded()

    def do(self, unit: Unit) -> Outcome:
        return attempt(self._loaded(), unit, lambda _: None)

    def _loaded(self) -> Work:
        if self._work is None:
            self._work = self._start()
        return self._work


def _run(ray: Any, actors: list[Any], units: Iterable[Unit], advance: Advance) -> Iterator[Outcome]:
    waiting, idle, busy = iter(units), list(actors), {}
    while True:
        while idle and (unit := next(waiting, None)) is not None:
            one = idle.pop()
            busy[one.do.remote(unit)] = one, unit
        if not busy:
            return
        (ended,), _ = ray.wait(list(busy), num_returns=1)
        one, unit = busy.pop(ended)
        with _explained(ray, unit.name):
            outcome = ray.get(ended)
        idle.append(one)
        advance(unit.rows)
        yield outcome


@contextmanager
def _explained(ray: Any, unit: str = "") -> Iterator[None]:
    """Raise what a worker raised as if it were raised here."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, OutriderError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        if "creation task" in str(error):  # it did not end, it never began
            reason = str(error).strip().splitlines()[-1]
            raise ResourceError(f"{unit or 'the model'}: a worker cannot begin: {reason}") from None
        raise ResourceError(
            f"{unit or 'the model'}: its worker ended {RETRIES + 1} times, most often for lack of "
            "memory; use fewer workers or smaller batches (batch_tokens)"
        ) from None
