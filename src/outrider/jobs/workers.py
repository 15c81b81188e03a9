"""Processing of the units of a job, in this process or on Ray actors that each load the model.

An actor processes one unit at a time. Ray restarts a killed actor and repeats its unit, so at most
one unit is lost.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from outrider.data.progress import show_stages
from outrider.errors import ConfigError, DataError, ModelError, OutriderError, ResourceError
from outrider.files.hub import model_folder
from outrider.formats.folder import weights_of
from outrider.jobs.folder import Advance, JobFolder, Outcome, Unit, Work, attempt
from outrider.runtime.backend import choose_device
from outrider.runtime.cluster import running_ray

Run = Callable[[Iterable[Unit], Advance], Iterator[Outcome]]
"""Processes units, and yields their outcomes in order of completion."""
RETRIES = 3
"""Most repetitions of a unit whose worker was killed."""
STORE_BYTES = 100 << 20
"""Size of Ray's object store, which jobs do not use."""


class Job(Protocol):
    """The arguments of a job, sent to workers."""

    @property
    def model(self) -> str | Path:
        """Folder or Hub id of the model."""

    def work(self, folder: JobFolder) -> Work:
        """Load the model."""


def start_worker(job: Job, folder: JobFolder) -> Work:
    """Load the model in a Ray worker; it must be the one that the driver loaded."""
    if weights_of(model_folder(job.model)) != folder.origin["weights"]:
        raise ModelError(f"{job.model}: changed during the job; run again")
    return job.work(folder)


def runner(
    work: Work | None, job: Job, folder: JobFolder, *, workers: int, threads: int, device: str
) -> AbstractContextManager[Run]:
    """Run `work` in this process if it is given, otherwise the job on Ray actors."""
    if work is not None:
        return nullcontext(in_process(work))
    gpu = choose_device(device).startswith("cuda")
    return on_ray(partial(start_worker, job, folder), workers=workers, threads=threads, gpu=gpu)


def in_process(work: Work) -> Run:
    """Process the units sequentially in this process."""
    return lambda units, advance: (attempt(work, unit, advance) for unit in units)


@contextmanager
def on_ray(
    start: Callable[[], Work], *, workers: int, threads: int, gpu: bool = False
) -> Iterator[Run]:
    """Start actors that each call `start()`.

    Args:
        start: Loads the model; a function of a module, or a `partial` of one.
        workers: Number of actors.
        threads: CPUs of each.
        gpu: Whether each has its own GPU.
    """
    with running_ray(
        "--workers", num_cpus=workers * threads, object_store_memory=STORE_BYTES
    ) as ray:
        if gpu and (gpus := int(ray.cluster_resources().get("GPU", 0))) < workers:
            raise ConfigError("workers", f"got {workers}, but Ray has {gpus} GPUs; each needs one")
        options = {"num_cpus": threads, "num_gpus": int(gpu), "max_restarts": -1}
        actor_class = ray.remote(**options, max_task_retries=RETRIES)(_Worker)
        actors = [actor_class.remote(start) for _ in range(workers)]
        with _unwrapped(ray):
            ray.get([actor.load.remote() for actor in actors])
        yield lambda units, advance: _run(ray, actors, units, advance)


class _Worker:
    """Loads on its first call, so that errors are raised as usual, not by the constructor."""

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
            actor = idle.pop()
            busy[actor.do.remote(unit)] = actor, unit
        if not busy:
            return
        (done,), _ = ray.wait(list(busy), num_returns=1)
        actor, unit = busy.pop(done)
        with _unwrapped(ray, unit.name):
            outcome = ray.get(done)
        idle.append(actor)
        advance(unit.rows)
        yield outcome


@contextmanager
def _unwrapped(ray: Any, name: str = "the model") -> Iterator[None]:
    """Re-raise the errors of a worker without Ray's wrapper."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, OutriderError):
            raise error.cause from error
        raise
    except ray.exceptions.RayActorError as error:
        if "creation task" in str(error):  # the actor never started
            reason = str(error).strip().splitlines()[-1]
            raise ResourceError(f"{name}: a worker cannot start: {reason}") from error
        raise ResourceError(
            f"{name}: its worker was killed {RETRIES + 1} times, usually for lack of "
            "memory; use fewer workers or smaller batches (batch_tokens)"
        ) from error


def finish_units(
    folder: JobFolder,
    units: Sequence[Unit],
    workers: AbstractContextManager[Run],
    *,
    damaged: Mapping[str, str],
    stage: str,
    progress: bool,
) -> None:
    """Process the unfinished units.

    Units with damaged input are set aside; they raise an error after all others are finished.

    Args:
        folder: Folder of the finished shards.
        units: All units of the job.
        workers: Entered if a unit is unfinished.
        damaged: Faults of damaged input files by name.
        stage: Name of the progress bar.
        progress: Whether to show it.
    """
    folder.begin(units)
    missing = folder.missing(units)
    faults = {unit: damaged[unit.input] for unit in missing if unit.input in damaged}
    for unit, fault in faults.items():
        folder.set_aside(unit, fault)
    readable = [unit for unit in missing if unit not in faults]
    if readable:
        with show_stages(progress) as stages, workers as run:
            advance = stages.start(stage, sum(unit.rows for unit in readable))
            for outcome in run(readable, advance):
                folder.store.check_alone()
                if outcome.fault:
                    folder.set_aside(outcome.unit, outcome.fault)
                    faults[outcome.unit] = outcome.fault
    if faults:
        names = ", ".join(sorted({unit.input for unit in faults}))
        raise DataError(
            f"{next(iter(faults.values()))}; set aside {len(faults)} of {len(units)} shards "
            f"(of {names}), the others are kept in {folder.store}: fix the input and run again"
        )
