"""Training speed relative to a bare PyTorch loop and to transformers' Seq2SeqTrainer.

The peer is measured with its defaults, and tuned. Engines run in separate processes and take turns
of a few updates each, so that other load affects all. Ratios are computed per round, and the median
over the rounds is reported.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.errors import ResourceError
from outrider.runtime.provenance import machine, versions
from outrider_lab.bench.process import Job, JobEndedError, run_alone
from outrider_lab.bench.train.corpus import synthetic_corpus
from outrider_lab.bench.train.engines import ENGINES, choose_precisions, run_engine
from outrider_lab.bench.train.setting import SpeedSetting

_PEERS = ("transformers", "transformers-tuned")


@dataclass(frozen=True)
class Turn:
    """One engine in one round."""

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
    """Measure the engines in turns and return ratios, speeds, machine and versions.

    Args:
        data: A prepared folder of pairs; by default a synthetic corpus of realistic lengths.
        quick: Measure for 20 seconds instead of five minutes; ratios are less precise.
        threads: CPU threads of each engine; by default PyTorch's choice.
        report: Called with a line on every round.
    """
    steps, most, budget = (1, 24, 20.0) if quick else (2, 100, 300.0)
    with tempfile.TemporaryDirectory() as folder:
        if data is None:
            data = synthetic_corpus(Path(folder) / "corpus").folder
        setting = run_alone(choose_precisions, SpeedSetting(data=data, threads=threads))
        report(f"precision: ours {setting.precision}, tuned peer {setting.tuned_precision}")
        rounds: list[Round] = []
        with _engines(setting) as jobs:
            _take_turns(jobs, ENGINES, 1)  # first updates allocate memory and warm caches
            start = time.monotonic()
            while len(rounds) < most and (not rounds or time.monotonic() - start < budget):
                rounds.append(_take_turns(jobs, _order(len(rounds)), steps))
                report(_describe(len(rounds), rounds[-1]))
    recorded = replace(setting, data=Path(data.name))
    return {
        **summarise(rounds),
        "rows": _rows(setting, rounds),
        "setting": {key: _plain(value) for key, value in vars(recorded).items()},
        "rounds": [{name: vars(turn) for name, turn in one.items()} for one in rounds],
        "machine": machine(),
        "versions": versions(),
    }


def summarise(rounds: Sequence[Round]) -> dict[str, float]:
    """Return medians over the rounds: time over the bare loop, speed over transformers."""
    to_bare = [one["outrider"].seconds / one["bare"].seconds for one in rounds]
    defaults, tuned = (_speedup(rounds, name) for name in _PEERS)
    return {
        "ratio_to_bare": round(statistics.median(to_bare), 4),
        "ratio_to_hf_trainer": defaults,
        "ratio_to_tuned_hf_trainer": tuned,
        "tokens_per_second": _speed(rounds, "outrider"),
    }


def _speedup(rounds: Sequence[Round], name: str) -> float:
    """Return our target tokens per second over those of another engine."""
    both = [one for one in rounds if name in one]
    return round(statistics.median(one["outrider"].speed / one[name].speed for one in both), 3)


def _speed(rounds: Sequence[Round], name: str) -> float:
    return round(statistics.median(one[name].speed for one in rounds if name in one), 1)


def _rows(setting: SpeedSetting, rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return a row per engine."""
    how = {
        "bare": (setting.precision, "by length"),
        "outrider": (setting.precision, "by length"),
        "transformers": ("float32", "at random"),
        "transformers-tuned": (setting.tuned_precision, "by length"),
    }
    return [
        {
            "engine": name,
            "precision": how[name][0],
            "batches": how[name][1],
            "tokens_per_second": _speed(rounds, name),
            "outrider_times_as_fast": _speedup(rounds, name),
        }
        for name in ENGINES
    ]


def _order(number: int) -> tuple[str, ...]:
    """Return the engines of a round: the fast ones alternate, the slow peers run seldom."""
    close = ("bare", "outrider") if number % 2 == 0 else ("outrider", "bare")
    return (*close, *_PEERS) if number % 3 == 0 else close


@contextmanager
def _engines(setting: SpeedSetting) -> Iterator[dict[str, Job]]:
    """Start a process per engine and end them."""
    with ExitStack() as stack:
        jobs = {name: stack.enter_context(Job(run_engine, name, setting)) for name in ENGINES}
        for job in jobs.values():
            job.receive()
        yield jobs
        for job in jobs.values():
            job.send(0)
        for job in jobs.values():
            job.wait()


def _take_turns(jobs: dict[str, Job], names: Iterable[str], steps: int) -> Round:
    turns = {}
    for name in names:
        try:
            turns[name] = Turn(*jobs[name].ask(1 if name in _PEERS else steps))
        except JobEndedError as error:
            raise ResourceError(f"{name}: {error}; it may have run out of memory") from error
    return turns


def _describe(number: int, turns: Round) -> str:
    speeds = ", ".join(f"{name} {turn.speed:,.0f}" for name, turn in turns.items())
    return f"round {number}: target tokens/s: {speeds}"


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
