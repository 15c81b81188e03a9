"""A process that runs an engine, and the parent's handle of it.

Libraries in one process compete for threads and memory, so each has its own. A worker waits until
the threads of its library have stopped spinning before it answers, so that they do not slow down
the next engine.
"""

import math
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from outrider.errors import UnsupportedError
from outrider.runtime.memory import peak_bytes, reset_peak
from outrider_lab.bench.decode.engines import Engine, EnginePlan, TimeSplit, build_engine
from outrider_lab.bench.process import Failure, Job

_PRELOAD = (__name__, "outrider.runtime", "transformers.models.marian.modeling_marian")
"""Modules that take seconds to import."""
_SETTLE = 0.5
"""Maximum seconds to wait for spinning threads."""


@dataclass(frozen=True)
class Turn:
    """Batches for a worker to translate."""

    mode: str
    batches: Sequence[Sequence[str]]
    split_time: bool = False
    """Return a `TimeSplit` instead of an `Answer`."""
    seconds: float = math.inf
    """Start no further batch after this time."""


@dataclass(frozen=True)
class Ready:
    """Sent by a worker after its model is loaded."""

    load_seconds: float
    modes: dict[str, str | None]
    largest_batch: dict[str, int]


@dataclass(frozen=True)
class Answer:
    """Translations of a turn, and their times."""

    seconds: list[float]
    """Of every batch that was started."""
    texts: list[list[str]]
    tokens: int
    peak_mib: float


class Worker:
    """The parent's handle of an engine's process."""

    def __init__(self, plan: EnginePlan) -> None:
        """Start the process; it imports its libraries and waits for `load`."""
        self.plan = plan
        # CTranslate2 needs no PyTorch: its process is spawned and stays small.
        preload = None if plan.library == "ctranslate2" else _PRELOAD
        self._job = Job(_work, plan, preload=preload)

    def wait(self) -> bool:
        """Wait until the libraries are imported."""
        return self._job.receive()

    def load(self) -> Ready:
        """Load the model."""
        return self._job.ask("load")

    def translate(self, turn: Turn) -> Answer:
        """Translate the batches of a turn."""
        return self._job.ask(turn)

    def split_time(self, turn: Turn) -> TimeSplit | None:
        """Translate the batches again and return the time by component."""
        return self._job.ask(turn)

    def stop(self) -> None:
        """Kill the process."""
        self._job.stop()


@contextmanager
def start_workers(plans: Sequence[EnginePlan]) -> Iterator[list[Worker]]:
    """Start one process per plan, all at once, and stop them at the end."""
    workers: list[Worker] = []
    try:
        workers.extend(Worker(plan) for plan in plans)
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def _work(pipe: Connection, plan: EnginePlan) -> None:
    """Entry point of the process."""
    os.environ["RAYON_NUM_THREADS"] = str(plan.threads)  # of the tokenizer
    os.environ |= plan.environment
    warnings.simplefilter("ignore")
    _import_libraries(plan)
    pipe.send(True)
    pipe.recv()
    start = time.perf_counter()
    engine = build_engine(plan)
    load_seconds = time.perf_counter() - start
    _settle()
    pipe.send(Ready(load_seconds, engine.modes, engine.largest_batch))
    while True:
        turn = pipe.recv()
        try:
            answer: Any = _take_turn(engine, turn)
        except Exception as error:  # at this setting; another may succeed
            answer = Failure.of(error)
        pipe.send(answer)


def _import_libraries(plan: EnginePlan) -> None:
    """Import the engine's modules, so that loading is timed without imports."""
    if plan.library == "ctranslate2":
        import ctranslate2  # noqa: F401
    else:
        from transformers import MarianMTModel  # noqa: F401
        from transformers.utils import logging

        import outrider.runtime  # noqa: F401

        logging.set_verbosity_error()
        logging.disable_progress_bar()


def _take_turn(engine: Engine, turn: Turn) -> Answer | TimeSplit | None:
    if turn.split_time:
        time_split = engine.split_time(turn.batches, turn.mode)
        _settle()
        return time_split
    reset_peak()
    seconds: list[float] = []
    texts, tokens = [], 0
    for batch in turn.batches:
        if sum(seconds) > turn.seconds:
            break
        start = time.perf_counter()
        output = engine.translate(batch, turn.mode)
        seconds.append(time.perf_counter() - start)
        texts.append(output.texts)
        tokens += output.tokens
    _settle()
    return Answer(seconds, texts, tokens, _peak_mib())


def _settle() -> None:
    """Wait until the threads of this process are idle."""
    deadline, step = time.perf_counter() + _SETTLE, 0.004
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(step)
        if time.process_time() - before < step / 4:
            return


def _peak_mib() -> float:
    """Return the peak memory of this process in its turn; 0 if unknown."""
    try:
        return peak_bytes() / 2**20
    except UnsupportedError:
        return 0.0
