"""Who does the units of a job: this process, or actors of Ray that each hold the model.

An actor has one unit at a time and is handed the next when it is done. Ray starts a killed one
again and gives it its unit once more, so a kill costs at most that unit.

A job from its first missing shard to its last.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from outrider.data.progress import show_stages
from outrider.errors import ConfigError, DataError, OutriderError, ResourceError
from outrider.jobs.folder import Advance, JobFolder, Outcome, Unit, Work, attempt
from outrider.runtime.cluster import running_ray
from outrider.runtime.engine import choose_device

__all__ = ["Run", "finish_units", "hired", "in_process", "on_ray"]

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


def finish_units(
    folder: JobFolder,
    units: Sequence[Unit],
    workers: AbstractContextManager[Run],
    *,
    damaged: Mapping[str, str],
    stage: str,
    progress: bool,
) -> None:
    """Let workers do what is missing.

    What cannot be read is set aside, the rest goes on, and all that was set aside is an error in
    the end.

    Args:
        folder: Where finished shards lie.
        units: All of the job.
        workers: Entered only if something is missing.
        damaged: What is wrong with which files of the input.
        stage: Name of the progress bar.
        progress: Whether to show it.
    """
    folder.begin(units)
    missing = folder.missing(units)
    faults = {unit: damaged[unit.input] for unit in missing if unit.input in damaged}
    for unit, fault in faults.items():
        folder.set_aside(unit, fault)
    whole = [unit for unit in missing if unit not in faults]
    if whole:
        with show_stages(progress) as stages, workers as run:
            advance = stages.start(stage, sum(unit.rows for unit in whole))
            for outcome in run(whole, advance):
                folder.store.check_alone()
                if outcome.fault:
                    folder.set_aside(outcome.unit, outcome.fault)
                    faults[outcome.unit] = outcome.fault
    if faults:
        names = ", ".join(sorted({unit.input for unit in faults}))
        raise DataError(
            f"{next(iter(faults.values()))}; set aside {len(faults)} of {len(units)} shards "
            f"(of {names}), the others are kept in {folder.store}: mend the input and run again"
        )
