"""An engine in a process of its own, and the parent's hold on it.

Libraries in one process fight over threads and memory, so each has its own. A worker waits on its
pipe, which costs nothing; before it answers it waits until the threads of its library have stopped
spinning, so that the next one's turn is not disturbed.
"""

import math
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from outrider.bench.decode.engines import Engine, EnginePlan, Explained, build_engine
from outrider.errors import OutriderError

__all__ = ["Answer", "EngineError", "Ready", "Turn", "Worker", "start_workers"]

_MARIAN = "transformers.models.marian.modeling_marian"
_SETTLE = 0.5
"""Seconds after which a worker answers though its threads still spin."""
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class EngineError(Exception):
    """An engine cannot go on; the message says why."""


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


@dataclass(frozen=True)
class _Failure:
    reason: str


def _context(plan: EnginePlan) -> Any:
    """Return what starts the process.

    Importing PyTorch and transformers takes seconds, so those who need them are copies of one
    process that has them already. The others start from nothing and stay small.
    """
    copied = "forkserver" in multiprocessing.get_all_start_methods()
    if plan.library == "ctranslate2" or not copied:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "outrider.runtime", _MARIAN])
    return context


class Worker:
    """The parent's hold on an engine."""

    def __init__(self, plan: EnginePlan) -> None:
        """Start the process; it imports its libraries and then waits for `load`."""
        self.plan = plan
        context = _context(plan)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(plan, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def wait(self) -> bool:
        """Wait until the libraries are imported."""
        return self._receive()

    def load(self) -> Ready:
        """Let it load its model."""
        return self._ask("load")

    def translate(self, turn: Turn) -> Answer:
        """Let it have its turn."""
        return self._ask(turn)

    def explain(self, turn: Turn) -> Explained | None:
        """Let it say where its time goes."""
        return self._ask(turn)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._pipe.close()
        self._process.kill()
        self._process.join(timeout=10)

    def _ask(self, message: Any) -> Any:
        try:
            self._pipe.send(message)
        except (BrokenPipeError, OSError):
            raise EngineError(self._fate()) from None
        return self._receive()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise EngineError(self._fate()) from None
        if isinstance(answer, _Failure):
            raise EngineError(answer.reason)
        return answer

    def _fate(self) -> str:
        self._process.join(timeout=5)
        return f"its process ended with code {self._process.exitcode}"


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


def _work(plan: EnginePlan, pipe: Connection) -> None:
    """Body of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and stops us
    os.environ["RAYON_NUM_THREADS"] = str(plan.threads)  # of the tokenizer
    warnings.simplefilter("ignore")
    with suppress(EOFError, BrokenPipeError):
        if (engine := _prepare(plan, pipe)) is None:
            return
        while True:
            turn = pipe.recv()
            try:
                pipe.send(_take_turn(engine, turn))
            except Exception as error:
                pipe.send(_Failure(_reason(error)))


def _prepare(plan: EnginePlan, pipe: Connection) -> Engine | None:
    """Import, then load when told to; None where that failed."""
    try:
        _import_libraries(plan)
        pipe.send(True)
        pipe.recv()
        began = time.perf_counter()
        engine = build_engine(plan)
        spent = time.perf_counter() - began
        _settle()
    except (EOFError, BrokenPipeError):
        raise
    except Exception as error:
        pipe.send(_Failure(_reason(error)))
        return None
    pipe.send(Ready(spent, engine.modes, engine.largest_batch))
    return engine


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


def _reason(error: Exception) -> str:
    if isinstance(error, OutriderError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _take_turn(engine: Engine, turn: Turn) -> Answer | Explained | None:
    if turn.explain:
        explained = engine.explain(turn.batches, turn.mode)
        _settle()
        return explained
    _forget_peak()
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


def _forget_peak() -> None:
    """Let the peak of the memory begin anew, where the system can."""
    with suppress(OSError):
        _RESET.write_text("5", encoding="ascii")


def _peak_mib() -> float:
    """The most memory this process has held, in MiB; zero where the system does not tell."""
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    peak = next((line for line in lines if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return int(peak.split()[1]) / 1024
