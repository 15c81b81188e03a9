"""An engine in a process of its own, and the parent's hold on it.

Libraries in one process fight over threads and memory, so each has its own. A worker waits on its
pipe, which costs nothing; before it answers it waits until the threads of its library have stopped
spinning, so that the next one's turn is not disturbed.
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

from outrider.bench.decode.engines import Engine, EnginePlan, Explained, build_engine
from outrider.bench.memory import peak_bytes, reset_peak
from outrider.bench.process import Failure, Job
from outrider.errors import UnsupportedError

__all__ = ["Answer", "Ready", "Turn", "Worker", "start_workers"]

_PRELOAD = (__name__, "outrider.runtime", "transformers.models.marian.modeling_marian")
"""Importing PyTorch and transformers takes seconds."""
_SETTLE = 0.5
"""Seconds after which a worker answers though its threads still spin."""


@dataclass(frozen=True)
class Turn:
    """What a worker is asked for."""

    mode: str
    batches: Sequence[Sequence[str]]
    explain: bool = False
    """Say where the time goes instead of how much it is."""
    seconds: float = math.inf
    """Begin no further batch after so long."""


@dataclass(frozen=True)
class Ready:
    """What a worker says once its model is loaded."""

    load_seconds: float
    modes: dict[str, str | None]
    largest_batch: dict[str, int]


@dataclass(frozen=True)
class Answer:
    """What a worker did in its turn."""

    seconds: list[float]
    """Of every batch that was begun."""
    texts: list[list[str]]
    tokens: int
    peak_mib: float


class Worker:
    """The parent's hold on an engine."""

    def __init__(self, plan: EnginePlan) -> None:
        """Start the process; it imports its libraries and then waits for `load`."""
        self.plan = plan
        # CTranslate2 needs no PyTorch: its process starts from nothing and stays small.
        preload = None if plan.library == "ctranslate2" else _PRELOAD
        self._job = Job(_work, plan, preload=preload)

    def wait(self) -> bool:
        """Wait until the libraries are imported."""
        return self._job.receive()

    def load(self) -> Ready:
        """Let it load its model."""
        return self._job.ask("load")

    def translate(self, turn: Turn) -> Answer:
        """Let it have its turn."""
        return self._job.ask(turn)

    def explain(self, turn: Turn) -> Explained | None:
        """Let it say where its time goes."""
        return self._job.ask(turn)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._job.stop()


@contextmanager
def start_workers(plans: Sequence[EnginePlan]) -> Iterator[list[Worker]]:
    """Start one process per plan, all at once, and stop them all at the end."""
    workers: list[Worker] = []
    try:
        workers.extend(Worker(plan) for plan in plans)
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def _work(pipe: Connection, plan: EnginePlan) -> None:
    """Body of the process."""
    os.environ["RAYON_NUM_THREADS"] = str(plan.threads)  # of the tokenizer
    warnings.simplefilter("ignore")
    _import_libraries(plan)
    pipe.send(True)
    pipe.recv()
    began = time.perf_counter()
    engine = build_engine(plan)
    spent = time.perf_counter() - began
    _settle()
    pipe.send(Ready(spent, engine.modes, engine.largest_batch))
    while True:
        turn = pipe.recv()
        try:
            answer: Any = _take_turn(engine, turn)
        except Exception as error:  # at this setting; another may succeed
            answer = Failure.of(error)
        pipe.send(answer)


def _import_libraries(plan: EnginePlan) -> None:
    """Import what the engine needs, so that loading is only that."""
    if plan.library == "ctranslate2":
        import ctranslate2  # noqa: F401
    else:
        from transformers import MarianMTModel  # noqa: F401
        from transformers.utils import logging

        import outrider.runtime  # noqa: F401

        logging.set_verbosity_error()
        logging.disable_progress_bar()


def _take_turn(engine: Engine, turn: Turn) -> Answer | Explained | None:
    if turn.explain:
        explained = engine.explain(turn.batches, turn.mode)
        _settle()
        return explained
    reset_peak()
    seconds: list[float] = []
    texts, tokens = [], 0
    for batch in turn.batches:
        if sum(seconds) > turn.seconds:
            break
        began = time.perf_counter()
        found = engine.translate(batch, turn.mode)
        seconds.append(time.perf_counter() - began)
        texts.append(found.texts)
        tokens += found.tokens
    _settle()
    return Answer(seconds, texts, tokens, _peak_mib())


def _settle() -> None:
    """Wait until no thread of this process works any more."""
    deadline, step = time.perf_counter() + _SETTLE, 0.004
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(step)
        if time.process_time() - before < step / 4:
            return


def _peak_mib() -> float:
    """The most memory this process has held in its turn; zero where the system does not tell."""
    try:
        return peak_bytes() / 2**20
    except UnsupportedError:
        return 0.0
