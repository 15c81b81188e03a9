"""How fast engines translate, in the spirit of Helcl et al. (2022, arXiv:2205.01966).

One process per engine and number of threads. They take turns on the same batches, only ever one at
a time, so that whatever else the machine does disturbs all of them alike. The first round warms up
and is not counted. What every engine wrote is kept beside its times: a speed without a look at the
output means nothing.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple, TypeVar

from outrider.bench.decode.engines import EnginePlan, Explained
from outrider.bench.decode.plan import Missing, Setting
from outrider.bench.decode.worker import (
    Answer,
    Ready,
    Turn,
    Worker,
    start_workers,
)
from outrider.bench.process import JobError

__all__ = ["UNLIMITED", "Limits", "Measured", "Speeds", "measure_speeds"]

Answered = TypeVar("Answered")
_TURN = 128
"""Sentences an engine translates before it is another one's turn."""
_FEWEST = 8
"""Sentences that even the slowest engine translates."""


@dataclass
class Measured:
    """One engine in one mode on one setting."""

    plan: EnginePlan
    mode: str
    setting: Setting
    load_seconds: float
    batches: dict[int, list[int]]
    """Those of the setting's batches that it decodes: the numbers of their sentences."""
    seconds: list[dict[int, float]] = field(default_factory=list)
    """For every repeat the time of each batch."""
    texts: dict[int, str] = field(default_factory=dict)
    """What was made of each sentence, by its number."""
    tokens: int = 0
    """Written in all repeats."""
    peak_mib: float = 0.0
    wavered: set[int] = field(default_factory=set)
    """Sentences that were not translated alike in all repeats."""
    explained: Explained | None = None

    @property
    def name(self) -> str:
        """What a person reads."""
        threads = f"{self.plan.threads} thread{'s' if self.plan.threads > 1 else ''}"
        return f"{self.plan.name} {self.mode}, {threads}"

    def add(self, repeat: int, batches: Sequence[int], answer: Answer) -> None:
        """Take in what was done in one turn."""
        if repeat == len(self.seconds):
            self.seconds.append({})
        self.seconds[repeat] |= dict(zip(batches, answer.seconds, strict=True))
        self.tokens += answer.tokens
        self.peak_mib = max(self.peak_mib, answer.peak_mib)
        for batch, texts in zip(batches, answer.texts, strict=True):
            for number, text in zip(self.batches[batch], texts, strict=True):
                if self.texts.setdefault(number, text) != text:
                    self.wavered.add(number)


@dataclass
class Speeds:
    """Everything that was measured, and what was not."""

    measured: list[Measured] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    def miss(self, engine: str, reason: str) -> None:
        """Remember what cannot be measured, each thing once."""
        if Missing(engine, reason) not in self.missing:
            self.missing.append(Missing(engine, reason))


class Limits(NamedTuple):
    """On the time in seconds that measuring may take."""

    one_pass: float = math.inf
    """An engine that needs longer for all sentences decodes only some of the batches."""
    whole: float = math.inf
    """After so long no setting is measured a second time."""


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
    """Let the engines take turns.

    Args:
        plans: The engines.
        sources: Sentences.
        lengths: Of the sentences in tokens, to sort by.
        settings: Batch sizes, orders and threads.
        repeats: Rounds that count, after one to warm up.
        limits: On the time this may take.
        expect: Told how many turns there will be, once that is known.
        report: Told at the beginning of every turn what is measured.
    """
    speeds, began = Speeds(), time.monotonic()
    with start_workers(plans) as workers:
        crew = _load(workers, speeds, report)
        races = [_Race(one, crew, sources, lengths, speeds, report) for one in settings]
        expect(sum(race.turns(repeats) for race in races))
        for race in races:
            race.run(repeats, deadline=began + limits.whole, one_pass=limits.one_pass)
    return speeds


def _load(
    workers: Sequence[Worker], speeds: Speeds, report: Callable[[str], None]
) -> list[tuple[Worker, Ready]]:
    """Let all import together, then load one after another, so that loading is timed alone."""
    report("starting one process per engine")
    ready: list[tuple[Worker, Ready]] = []
    started = [worker for worker in workers if _try(worker.wait, worker, speeds) is not None]
    for worker in started:
        report(f"loading {worker.plan.name}")
        if (state := _try(worker.load, worker, speeds)) is not None:
            ready.append((worker, state))
    return ready


def _try(act: Callable[[], Answered], worker: Worker, speeds: Speeds) -> Answered | None:
    """Do it, or remember why it could not be done."""
    try:
        return act()
    except JobError as error:
        speeds.miss(worker.plan.name, str(error))
        return None


class _Race:
    """All engines on one setting."""

    def __init__(
        self,
        setting: Setting,
        crew: Sequence[tuple[Worker, Ready]],
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
            for worker, ready in crew
            if worker.plan.threads in setting.threads
            for mode in self._modes(worker.plan, ready)
        ]

    def _modes(self, plan: EnginePlan, ready: Ready) -> list[str]:
        """Return what this engine can do here; why it cannot do the rest is remembered."""
        possible = []
        for mode, hindrance in ready.modes.items():
            bound = ready.largest_batch.get(mode)
            if hindrance is None and bound is not None and self.setting.batch > bound:
                hindrance = f"only takes batches of up to {bound}"
            if hindrance is None:
                possible.append(mode)
            else:
                self.speeds.miss(f"{plan.name} {mode}", hindrance)
        return possible

    def _measured(self, plan: EnginePlan, mode: str, ready: Ready) -> Measured:
        return Measured(plan, mode, self.setting, ready.load_seconds, dict(enumerate(self.batches)))

    @property
    def blocks(self) -> list[range]:
        """The batches of each turn."""
        step = max(1, _TURN // self.setting.batch)
        return [range(at, at + step) for at in range(0, len(self.batches), step)]

    def turns(self, repeats: int) -> int:
        """Count the turns there will be if nothing fails."""
        return len(self.entries) * (len(self.blocks) * repeats + 2)

    def run(self, repeats: int, *, deadline: float, one_pass: float) -> None:
        """Let everybody warm up, then have their turns, then say where the time went."""
        for entry in list(self.entries):
            self._let(entry, "warming up", partial(self._warm_up, entry, one_pass))
        for repeat in range(repeats):
            if repeat and time.monotonic() > deadline:
                break
            for block in self.blocks:
                for entry in self._order(repeat):
                    what = f"repeat {repeat + 1} of {repeats}"
                    self._let(entry, what, partial(self._turn, entry, block, repeat))
        for entry in list(self.entries):
            self._let(entry, "time split", partial(self._explain, entry))
        self.speeds.measured += [entry.measured for entry in self.entries]

    def _order(self, repeat: int) -> list[_Entry]:
        """Let another one begin each time, so that nobody always follows the same one."""
        shift = repeat % max(1, len(self.entries))
        return [*self.entries[shift:], *self.entries[:shift]]

    def _warm_up(self, entry: _Entry, one_pass: float) -> None:
        """Translate everything once; leave batches out where that takes too long.

        One of 2, 4, 8, ... is kept, always with the one in the middle, so that of two engines one
        decodes everything that the other does.
        """
        measured, middle = entry.measured, len(self.batches) // 2
        first = Turn(measured.mode, self._texts(measured, [middle]))
        entry.worker.translate(first)  # it may have to find out things, such as how far to draft
        texts = self._texts(measured, range(len(self.batches)))
        answer = entry.worker.translate(Turn(measured.mode, texts, seconds=one_pass))
        needed, every = median(answer.seconds) * len(texts), 1
        while needed > one_pass * every and len(self.sources) >= 2 * every * _FEWEST:
            every *= 2
        measured.batches = {
            at: numbers for at, numbers in measured.batches.items() if (at - middle) % every == 0
        }

    def _let(self, entry: _Entry, what: str, act: Callable[[], None]) -> None:
        """Do something with one engine; one that fails is out of the race."""
        self.report(f"{self.setting.name}: {entry.measured.name} ({what})")
        try:
            act()
        except JobError as error:
            self.speeds.miss(entry.measured.name, f"failed at {self.setting.name}: {error}")
            self.entries.remove(entry)

    def _turn(self, entry: _Entry, block: range, repeat: int) -> None:
        measured = entry.measured
        if batches := [at for at in block if at in measured.batches]:
            answer = entry.worker.translate(Turn(measured.mode, self._texts(measured, batches)))
            measured.add(repeat, batches, answer)

    def _explain(self, entry: _Entry) -> None:
        measured = entry.measured
        batches = list(measured.batches)[: max(1, _TURN // self.setting.batch)]
        turn = Turn(measured.mode, self._texts(measured, batches), explain=True)
        measured.explained = entry.worker.explain(turn)

    def _texts(self, measured: Measured, batches: Sequence[int]) -> list[list[str]]:
        return [[self.sources[n] for n in measured.batches[at]] for at in batches]
