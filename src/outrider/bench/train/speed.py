"""How fast we train, against a bare PyTorch loop and against transformers' own Seq2SeqTrainer.

Each engine runs in a process of its own, one at a time: they take turns, a few updates each, so
that other load on the machine hits all of them alike. Ratios are taken within a round, and the
median over the rounds is reported.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.bench.process import Job, JobEndedError
from outrider.bench.train.corpus import synthetic_corpus
from outrider.bench.train.engines import SpeedSetting, run_engine
from outrider.errors import ResourceError
from outrider.evaluation.results import machine, versions

__all__ = ["Turn", "measure_training", "summarise"]

_NAMES = ("bare", "outrider", "transformers")


@dataclass(frozen=True)
class Turn:
    """What one engine did in one round."""

    seconds: float
    tokens: int

    @property
    def speed(self) -> float:
        """Target tokens per second."""
        return self.tokens / self.seconds


Round = dict[str, Turn]
"""Turns by the name of the engine."""


def measure_training(
    *,
    data: Path | None = None,
    quick: bool = False,
    threads: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Let the engines take turns and return ratios, speeds, machine and versions.

    Args:
        data: A prepared folder of pairs; by default a synthetic corpus of realistic lengths.
        quick: Take turns for 20 seconds instead of five minutes; ratios are then rougher.
        threads: CPU threads of each engine; by default as PyTorch chooses.
        report: Called with a line on every round.
    """
    steps, most, budget = (1, 24, 20.0) if quick else (2, 100, 300.0)
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            data = synthetic_corpus(Path(folder) / "corpus").folder
        setting = SpeedSetting(data=data, threads=threads)
        rounds: list[Round] = []
        with _engines(setting) as jobs:
            _take_turns(jobs, _NAMES, 1)  # first updates allocate memory and warm caches
            began = time.monotonic()
            while len(rounds) < most and (not rounds or time.monotonic() - began < budget):
                rounds.append(_take_turns(jobs, _order(len(rounds)), steps))
                report(_describe(len(rounds), rounds[-1]))
    recorded = replace(setting, data=Path(data.name))
    return {
        **summarise(rounds),
        "setting": {key: _plain(value) for key, value in vars(recorded).items()},
        "rounds": [{name: vars(turn) for name, turn in one.items()} for one in rounds],
        "machine": machine(),
        "versions": versions(),
    }


def summarise(rounds: Sequence[Round]) -> dict[str, float]:
    """Medians over the rounds: ours over a bare loop (time), over transformers (speed)."""
    compared = [one for one in rounds if "transformers" in one]
    to_bare = [one["outrider"].seconds / one["bare"].seconds for one in rounds]
    to_theirs = [one["outrider"].speed / one["transformers"].speed for one in compared]
    speeds = [one["outrider"].speed for one in rounds]
    return {
        "ratio_to_bare": round(statistics.median(to_bare), 4),
        "ratio_to_hf_trainer": round(statistics.median(to_theirs), 3),
        "tokens_per_second": round(statistics.median(speeds), 1),
    }


def _order(number: int) -> tuple[str, ...]:
    """Who takes turns in a round: the two that are close swap places, the slow one comes seldom."""
    close = ("bare", "outrider") if number % 2 == 0 else ("outrider", "bare")
    return (*close, "transformers") if number % 4 == 0 else close


@contextmanager
def _engines(setting: SpeedSetting) -> Iterator[dict[str, Job]]:
    """Start one process per engine and end them all."""
    with ExitStack() as stack:
        jobs = {name: stack.enter_context(Job(run_engine, name, setting)) for name in _NAMES}
        for job in jobs.values():
            job.receive()
        yield jobs
        for job in jobs.values():
            job.send(0)
        for job in jobs.values():
            job.wait()


def _take_turns(jobs: dict[str, Job], names: Sequence[str], steps: int) -> Round:
    turns = {}
    for name in names:
        try:
            turns[name] = Turn(*jobs[name].ask(1 if name == "transformers" else steps))
        except JobEndedError as error:
            raise ResourceError(f"{name}: {error}; it may have run out of memory") from None
    return turns


def _describe(number: int, turns: Round) -> str:
    speeds = ", ".join(f"{name} {turn.speed:,.0f}" for name, turn in turns.items())
    return f"round {number}: target tokens/s: {speeds}"


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
