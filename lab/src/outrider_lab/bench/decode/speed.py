"""Decoding speed of engines, similar to Helcl et al. (2022, arXiv:2205.01966).

Each engine and number of threads has its own process. They take turns on the same batches, one at a
time, so that other load affects all equally. The first round is a warm-up. Outputs are recorded
with the times.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple, TypeVar

from outrider_lab.bench.decode.engines import EnginePlan, TimeSplit
from outrider_lab.bench.decode.plan import Missing, Setting
from outrider_lab.bench.decode.worker import (
    Answer,
    Ready,
    Turn,
    Worker,
    start_workers,
)
from outrider_lab.bench.process import JobError

Answered = TypeVar("Answered")
_TURN = 128
"""Sentences per turn of an engine."""
_FEWEST = 8
"""Minimum sentences of the slowest engine."""


@dataclass
class Measured:
    """One engine in one mode at one setting."""

    plan: EnginePlan
    mode: str
    setting: Setting
    load_seconds: float
    batches: dict[int, list[int]]
    """Batches of the setting that it decodes: indices of their sentences, by number."""
    seconds: list[dict[int, float]] = field(default_factory=list)
    """The time of each batch, by repeat."""
    texts: dict[int, str] = field(default_factory=dict)
    """Translations by index of the sentence."""
    tokens: int = 0
    """Target tokens of all repeats."""
    peak_mib: float = 0.0
    unstable: set[int] = field(default_factory=set)
    """Sentences whose translation differed between repeats."""
    time_split: TimeSplit | None = None

    @property
    def name(self) -> str:
        """Its name in a report."""
        threads = f"{self.plan.threads} thread{'s' if self.plan.threads > 1 else ''}"
        return f"{self.plan.name} {self.mode}, {threads}"

    def add(self, repeat: int, batches: Sequence[int], answer: Answer) -> None:
        """Add the answer of one turn."""
        if repeat == len(self.seconds):
            self.seconds.append({})
        self.seconds[repeat] |= dict(zip(batches, answer.seconds, strict=True))
        self.tokens += answer.tokens
        self.peak_mib = max(self.peak_mib, answer.peak_mib)
        for batch, texts in zip(batches, answer.texts, strict=True):
            for number, text in zip(self.batches[batch], texts, strict=True):
                if self.texts.setdefault(number, text) != text:
                    self.unstable.add(number)


@dataclass
class Speeds:
    """All measurements, and the engines that failed."""

    measured: list[Measured] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    def add_missing(self, engine: str, reason: str) -> None:
        """Record an engine that was not measured, once per reason."""
        if Missing(engine, reason) not in self.missing:
            self.missing.append(Missing(engine, reason))


class Limits(NamedTuple):
    """Time limits in seconds."""

    one_pass: float = math.inf
    """An engine that needs longer for all sentences decodes only some of the batches."""
    whole: float = math.inf
    """No further repeats after this time."""


UNLIMITED = Limits()


class _Entry(NamedTuple):
    worker: Worker
    measured: Measured


def measure_speeds(
    plans: Sequence[EnginePlan],
    sources: Sequence[str],
    lengths: Sequence[int],
    settings: Sequence[Setting],
    *,
    repeats: int,
    limits: Limits = UNLIMITED,
    expect: Callable[[int], None] = lambda _: None,
    report: Callable[[str], None] = lambda _: None,
) -> Speeds:
    """Measure the engines in turns.

    Args:
        plans: The engines.
        sources: Sentences.
        lengths: Their lengths in tokens, to sort by.
        settings: Batch sizes, orders and threads.
        repeats: Timed rounds, after a warm-up.
        limits: Time limits.
        expect: Called once with the number of turns.
        report: Called before every turn with a description.
    """
    speeds, start = Speeds(), time.monotonic()
    with start_workers(plans) as workers:
        ready = _load(workers, speeds, report)
        runs = [_SettingRun(s, ready, sources, lengths, speeds, report) for s in settings]
        expect(sum(run.turns(repeats) for run in runs))
        for run in runs:
            run.run(repeats, deadline=start + limits.whole, one_pass=limits.one_pass)
    return speeds


def _load(
    workers: Sequence[Worker], speeds: Speeds, report: Callable[[str], None]
) -> list[tuple[Worker, Ready]]:
    """Import in parallel, then load one after another, so that load times are comparable."""
    report("starting one process per engine")
    ready: list[tuple[Worker, Ready]] = []
    started = [worker for worker in workers if _try(worker.wait, worker, speeds) is not None]
    for worker in started:
        report(f"loading {worker.plan.name}")
        if (state := _try(worker.load, worker, speeds)) is not None:
            ready.append((worker, state))
    return ready


def _try(act: Callable[[], Answered], worker: Worker, speeds: Speeds) -> Answered | None:
    """Run an action, or record why it failed."""
    try:
        return act()
    except JobError as error:
        speeds.add_missing(worker.plan.name, str(error))
        return None


class _SettingRun:
    """All engines on one setting."""

    def __init__(
        self,
        setting: Setting,
        workers: Sequence[tuple[Worker, Ready]],
        sources: Sequence[str],
        lengths: Sequence[int],
        speeds: Speeds,
        report: Callable[[str], None],
    ) -> None:
        self.setting = setting
        self.sources = sources
        self.speeds = speeds
        self.report = report
        self.batches = setting.batches(lengths)
        self.entries = [
            _Entry(worker, self._measured(worker.plan, mode, ready))
            for worker, ready in workers
            if worker.plan.threads in setting.threads
            for mode in self._modes(worker.plan, ready)
        ]

    def _modes(self, plan: EnginePlan, ready: Ready) -> list[str]:
        """Return the modes that this engine supports; record the reason for the others."""
        possible = []
        for mode, reason in ready.modes.items():
            bound = ready.largest_batch.get(mode)
            if reason is None and bound is not None and self.setting.batch > bound:
                reason = f"only takes batches of up to {bound}"
            if reason is None:
                possible.append(mode)
            else:
                self.speeds.add_missing(f"{plan.name} {mode}", reason)
        return possible

    def _measured(self, plan: EnginePlan, mode: str, ready: Ready) -> Measured:
        return Measured(plan, mode, self.setting, ready.load_seconds, dict(enumerate(self.batches)))

    @property
    def blocks(self) -> list[range]:
        """The batches of each turn."""
        step = max(1, _TURN // self.setting.batch)
        return [range(at, at + step) for at in range(0, len(self.batches), step)]

    def turns(self, repeats: int) -> int:
        """Return the number of turns if no engine fails."""
        return len(self.entries) * (len(self.blocks) * repeats + 2)

    def run(self, repeats: int, *, deadline: float, one_pass: float) -> None:
        """Warm up, take turns, then split the time."""
        for entry in list(self.entries):
            self._attempt(entry, "warming up", partial(self._warm_up, entry, one_pass))
        for repeat in range(repeats):
            if repeat and time.monotonic() > deadline:
                break
            for block in self.blocks:
                for entry in self._order(repeat):
                    what = f"repeat {repeat + 1} of {repeats}"
                    self._attempt(entry, what, partial(self._turn, entry, block, repeat))
        for entry in list(self.entries):
            self._attempt(entry, "time split", partial(self._split_time, entry))
        self.speeds.measured += [entry.measured for entry in self.entries]

    def _order(self, repeat: int) -> list[_Entry]:
        """Rotate the engines, so that none always follows the same one."""
        shift = repeat % max(1, len(self.entries))
        return [*self.entries[shift:], *self.entries[:shift]]

    def _warm_up(self, entry: _Entry, one_pass: float) -> None:
        """Translate everything once; leave out batches if that takes too long.

        Every 2nd, 4th, 8th, ... batch is kept, always including the middle one, so that of two
        engines one decodes all batches of the other.
        """
        measured, middle = entry.measured, len(self.batches) // 2
        first = Turn(measured.mode, self._texts(measured, [middle]))
        entry.worker.translate(first)  # one-time work
        texts = self._texts(measured, range(len(self.batches)))
        answer = entry.worker.translate(Turn(measured.mode, texts, seconds=one_pass))
        needed, stride = median(answer.seconds) * len(texts), 1
        while needed > one_pass * stride and len(self.sources) >= 2 * stride * _FEWEST:
            stride *= 2
        measured.batches = {
            at: numbers for at, numbers in measured.batches.items() if (at - middle) % stride == 0
        }

    def _attempt(self, entry: _Entry, what: str, act: Callable[[], None]) -> None:
        """Run one action; an engine that fails is removed from this setting."""
        self.report(f"{self.setting.name}: {entry.measured.name} ({what})")
        try:
            act()
        except JobError as error:
            self.speeds.add_missing(entry.measured.name, f"failed at {self.setting.name}: {error}")
            self.entries.remove(entry)

    def _turn(self, entry: _Entry, block: range, repeat: int) -> None:
        measured = entry.measured
        if batches := [at for at in block if at in measured.batches]:
            answer = entry.worker.translate(Turn(measured.mode, self._texts(measured, batches)))
            measured.add(repeat, batches, answer)

    def _split_time(self, entry: _Entry) -> None:
        measured = entry.measured
        batches = list(measured.batches)[: max(1, _TURN // self.setting.batch)]
        turn = Turn(measured.mode, self._texts(measured, batches), split_time=True)
        measured.time_split = entry.worker.split_time(turn)

    def _texts(self, measured: Measured, batches: Sequence[int]) -> list[list[str]]:
        return [[self.sources[n] for n in measured.batches[at]] for at in batches]
