"""Rows per second of a job on Ray, relative to bare processes with the same shards.

Both have the same number of workers, with one thread and one model each, and give the next shard to
the first idle worker. All are started and loaded before timing; then both take turns, so that other
load affects both. The first round is a warm-up. Their outputs must be equal.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Lock
from time import perf_counter
from typing import Any

from outrider.errors import DataError, OutriderError
from outrider.files.hub import model_folder
from outrider.jobs.distill import DISTILL_TOKENS, Block, Distillation, blocks
from outrider.jobs.folder import Advance, JobFolder, Outcome, Unit, Work, attempt
from outrider.jobs.workers import Run, on_ray, start_worker
from outrider.runtime.provenance import machine, versions
from outrider_lab.bench.process import Job


def measure_jobs(
    model: str | Path,
    data: str | Path,
    *,
    rows: int | None = None,
    workers: int = 2,
    rounds: int = 5,
    batch_tokens: int = DISTILL_TOKENS,
    dtype: str = "float32",
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Translate the rows of `train` with Ray and with bare processes.

    Args:
        model: A model folder or the id of a Hub model.
        data: A prepared folder with its tokenizer; each of its blocks is a shard.
        rows: Maximum number of rows.
        workers: Processes of each variant.
        rounds: Timed rounds.
        batch_tokens: Maximum tokens in a worker at once.
        dtype: As in `load`.
        report: Called with a line on every step.
    """
    job = Distillation(
        model_folder(model).resolve(),
        Path(data).resolve(),
        batch_tokens=batch_tokens,
        device="cpu",
        dtype=dtype,
        threads=1,
    )
    origin = job.origin(job.load()[1], rows)
    units = blocks(job.prepared, "train", rows)
    if len(units) < workers:
        raise DataError(f"{data}: has {len(units)} blocks in train, fewer than {workers} workers")
    ways: dict[str, Callable[..., AbstractContextManager[Run]]] = {
        "ray": partial(on_ray, workers=workers, threads=1),
        "processes": partial(processes, workers=workers),
    }
    start: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with TemporaryDirectory(prefix="outrider-jobs-") as temporary, ExitStack() as stack:
        folders = {name: JobFolder(Path(temporary, name), origin) for name in ways}
        runs: dict[str, Run] = {}
        for name, way in ways.items():
            report(f"starting {workers} workers: {name}")
            started = perf_counter()
            load = partial(start_worker, replace(job), folders[name])
            runs[name] = stack.enter_context(way(load))
            start[name] = perf_counter() - started
        for turn in range(rounds + 1):
            for name in list(ways)[:: 1 if turn % 2 else -1]:
                report(f"{name}, {turn} of {rounds}" if turn else f"{name}, a warm-up")
                elapsed = _time(runs[name], units, folders[name].path)
                seconds[name] += [elapsed] * bool(turn)
            _check_same(folders, units)
    return {
        "ratio_to_bare_processes": round(
            median(b / a for a, b in zip(seconds["ray"], seconds["processes"], strict=True)), 4
        ),
        "rows_per_second": {
            name: round(sum(unit.rows for unit in units) / median(times), 2)
            for name, times in seconds.items()
        },
        "start_seconds": {name: round(value, 2) for name, value in start.items()},
        "seconds": {name: [round(value, 4) for value in times] for name, times in seconds.items()},
        "workers": workers,
        "threads": 1,
        "shards": len(units),
        "rows": sum(unit.rows for unit in units),
        "origin": {**origin, "model": str(model)},
        "machine": machine(),
        "versions": versions(),
    }


def _time(run: Run, units: list[Block], folder: Path) -> float:
    """Process all units into an empty folder; return the seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    started = perf_counter()
    for outcome in run(units, lambda _: None):
        if outcome.fault:
            raise DataError(outcome.fault)
    return perf_counter() - started


def _check_same(folders: dict[str, JobFolder], units: list[Block]) -> None:
    for unit in units:
        if len({folder.read(unit).shards for folder in folders.values()}) != 1:
            raise OutriderError(f"{unit.name}: Ray and bare processes wrote different shards")


@contextmanager
def processes(start: Callable[[], Work], *, workers: int) -> Iterator[Run]:
    """Start bare processes that pull units, like Ray's actors."""
    with ExitStack() as stack:
        jobs = [stack.enter_context(Job(_serve, start)) for _ in range(workers)]
        for job in jobs:
            job.receive()
        yield lambda units, advance: _share(jobs, units, advance)


def _serve(pipe: Connection, start: Callable[[], Work]) -> None:
    work = start()
    pipe.send("loaded")
    with suppress(EOFError):
        while True:
            pipe.send(attempt(work, pipe.recv(), lambda _: None))


def _share(jobs: list[Job], units: Iterable[Unit], advance: Advance) -> Iterator[Outcome]:
    waiting, lock = iter(units), Lock()

    def pull(job: Job) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while True:
            with lock:
                unit = next(waiting, None)
            if unit is None:
                return outcomes
            outcomes.append(job.ask(unit))

    with ThreadPoolExecutor(len(jobs)) as pool:
        for outcomes in pool.map(pull, jobs):
            for outcome in outcomes:
                advance(outcome.unit.rows)
                yield outcome
