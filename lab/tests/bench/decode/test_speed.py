"""The schedule of the decode benchmark: turns, limits and failures."""

import os
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider_lab.bench.decode import speed as module
from outrider_lab.bench.decode import worker as decode_worker
from outrider_lab.bench.decode.engines import EnginePlan, TimeSplit, Translated
from outrider_lab.bench.decode.plan import Missing, Setting, settings
from outrider_lab.bench.decode.speed import Limits, measure_speeds
from outrider_lab.bench.decode.worker import Answer, Ready, Turn, Worker
from outrider_lab.bench.process import JobError

SOURCES = [f"line {number}" for number in range(40)]
LENGTHS = [number * 7 % 40 for number in range(40)]


class PretendWorker:
    """Reports `cost` seconds per sentence without waiting."""

    def __init__(self, plan: EnginePlan, log: list[tuple[str, int]]) -> None:
        self.plan = plan
        self.log = log
        self.cost = {"slow": 1.0}.get(plan.name, 0.01)

    def wait(self) -> bool:
        return True

    def load(self) -> Ready:
        if self.plan.name == "absent":
            raise JobError("is not here")
        modes = {"ar": None, "assisted": None, "tandem": "has no drafter"}
        return Ready(0.5, modes, {"assisted": 1})

    def translate(self, turn: Turn) -> Answer:
        if self.plan.name == "fragile" and len(turn.batches[0]) > 1:
            raise JobError("out of memory")
        self.log.append((self.plan.name, sum(map(len, turn.batches))))
        done = []
        for batch in turn.batches:
            if sum(done) > turn.seconds:
                break
            done.append(self.cost * len(batch))
        texts = [[text.upper() for text in batch] for batch in turn.batches[: len(done)]]
        return Answer(done, texts, tokens=sum(map(len, texts)), peak_mib=10.0)

    def split_time(self, turn: Turn) -> TimeSplit | None:
        return None


@pytest.fixture
def run_(monkeypatch: pytest.MonkeyPatch) -> Any:
    log: list[tuple[str, int]] = []

    @contextmanager
    def pretend(plans: list[EnginePlan]) -> Any:
        yield [PretendWorker(plan, log) for plan in plans]

    monkeypatch.setattr(module, "start_workers", pretend)

    def run(names: list[str], *chosen: Setting, **options: Any) -> Any:
        plans = [EnginePlan(name, "torch", Path(), modes=("ar",)) for name in names]
        return measure_speeds(plans, SOURCES, LENGTHS, chosen, **options), log

    return run


def test_settings_list_the_measurements() -> None:
    both = ("sorted", "unsorted")
    assert settings([1, 8], both, [1, 2], all_threads=False) == [
        Setting(1, "unsorted", (1, 2)),
        Setting(8, "sorted", (1,)),
        Setting(8, "unsorted", (1,)),
    ]
    assert Setting(2, "sorted", (1,)).batches([5, 1, 4, 2, 3]) == [[1, 3], [4, 2], [0]]
    assert Setting(2, "unsorted", (1,)).batches([5, 1, 4]) == [[0, 1], [2]]


def test_engines_take_turns_and_the_first_one_changes(run_, monkeypatch) -> None:
    monkeypatch.setattr(module, "_TURN", 20)
    found, log = run_(["a", "b"], Setting(1, "unsorted", (1,)), repeats=2)
    plain = [name for name, count in log if count == 20]
    # Both engines have two modes; each pass takes two turns. The warm-up is one turn of 40.
    assert plain == ["a", "a", "b", "b"] * 2 + ["a", "b", "b", "a"] * 2
    assert [(one.plan.name, one.mode) for one in found.measured] == [
        *[("a", "ar"), ("a", "assisted")],
        *[("b", "ar"), ("b", "assisted")],
    ]
    for one in found.measured:
        assert [len(repeat) for repeat in one.seconds] == [40, 40]
        assert one.texts == {number: f"LINE {number}" for number in range(40)}
        assert (one.load_seconds, one.peak_mib) == (0.5, 10.0)


def test_missing_engines_are_named_once(run_) -> None:
    chosen = [Setting(1, "unsorted", (1,)), Setting(8, "sorted", (1,))]
    found, _ = run_(["absent", "a", "fragile"], *chosen, repeats=1)
    assert found.missing == [
        Missing("absent", "is not here"),
        Missing("a tandem", "has no drafter"),
        Missing("fragile tandem", "has no drafter"),
        Missing("a assisted", "only takes batches of up to 1"),
        Missing("fragile assisted", "only takes batches of up to 1"),
        Missing("fragile ar, 1 thread", "failed at batch 8, sorted: out of memory"),
    ]
    measured = {(one.plan.name, one.setting.batch, one.mode) for one in found.measured}
    assert ("a", 8, "ar") in measured
    assert ("fragile", 8, "ar") not in measured


def test_slow_engines_decode_a_subset(run_) -> None:
    setting = Setting(1, "sorted", (1,))
    found, _ = run_(["slow", "a"], setting, repeats=1, limits=Limits(one_pass=10.5))
    slow, fast = found.measured[0], found.measured[2]
    assert sorted(fast.batches) == list(range(40))
    assert sorted(slow.batches) == list(range(0, 40, 4))
    assert slow.batches.items() <= fast.batches.items()
    found, _ = run_(["slow"], setting, repeats=1, limits=Limits(one_pass=0.1))
    assert len(found.measured[0].batches) == 10  # at least 8 sentences


def test_late_settings_are_measured_once(run_) -> None:
    chosen = [Setting(1, "unsorted", (1,)), Setting(8, "unsorted", (1,))]
    found, _ = run_(["a"], *chosen, repeats=5, limits=Limits(whole=-1.0))
    assert [len(one.seconds) for one in found.measured] == [1, 1, 1]


def test_all_expected_turns_are_reported(run_) -> None:
    turns, reported = [], []
    chosen = [Setting(1, "unsorted", (1,)), Setting(8, "unsorted", (1, 2))]
    run_(["a", "b"], *chosen, repeats=3, expect=turns.append, report=reported.append)
    assert len([text for text in reported if text.startswith("batch")]) == turns[0]
    assert "batch 8, unsorted: b ar, 1 thread (repeat 3 of 3)" in reported


def test_changing_texts_are_counted() -> None:
    plan = EnginePlan("a", "torch", Path())
    one = module.Measured(plan, "ar", Setting(2, "sorted", (1,)), 0.0, {0: [0, 1], 1: [2]})
    one.add(0, [0, 1], Answer([0.1, 0.1], [["a", "b"], ["c"]], 3, 1.0))
    one.add(1, [0, 1], Answer([0.1, 0.1], [["a", "x"], ["c"]], 3, 2.0))
    assert (one.unstable, one.tokens, one.peak_mib) == ({1}, 6, 2.0)


class _Dying:
    modes: dict[str, str | None] = {"ar": None}  # noqa: RUF012
    largest_batch: dict[str, int] = {}  # noqa: RUF012

    def translate(self, texts: list[str], mode: str) -> Translated:
        if texts == ["die"]:
            os._exit(7)
        if texts == ["raise"]:
            raise RuntimeError("too\n  long")
        return Translated([text[::-1] for text in texts], len(texts))

    def split_time(self, batches: Any, mode: str) -> None:
        return None


class _Pipe:
    """The worker's end of a pipe, with all messages of the parent prepared."""

    def __init__(self, *said: Any) -> None:
        self.said, self.heard = list(said), []

    def recv(self) -> Any:
        if not self.said:
            raise EOFError
        return self.said.pop(0)

    def send(self, message: Any) -> None:
        self.heard.append(message)


def test_a_worker_answers_until_its_pipe_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_worker, "build_engine", lambda plan: _Dying())
    monkeypatch.setattr(decode_worker.warnings, "simplefilter", lambda *_: None)
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    turns = [Turn("ar", [["abc", "de"], ["f"]]), Turn("ar", [["raise"]]), Turn("ar", [["a"]] * 9)]
    pipe = _Pipe("load", *turns[:2], Turn("ar", [["a"]] * 9, seconds=-1.0))
    with pytest.raises(EOFError):
        decode_worker._work(pipe, EnginePlan("a", "ctranslate2", Path()))
    imported, ready, first, second, third = pipe.heard
    assert imported is True
    assert (ready.modes, ready.largest_batch) == ({"ar": None}, {})
    assert first.texts == [["cba", "ed"], ["f"]]
    assert (first.tokens, len(first.seconds)) == (3, 2)
    assert first.peak_mib > 1
    assert second.reason == "RuntimeError: too long"
    assert third.texts == []


def test_a_dead_process_is_a_failed_engine() -> None:
    worker = Worker(EnginePlan("nothing", "ctranslate2", Path("no such folder")))
    try:
        assert worker.wait() is True
        worker._job._process.kill()
        with pytest.raises(JobError, match="its process ended with code -9"):
            worker.load()
    finally:
        worker.stop()


def test_settling_waits_for_threads_that_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([0.0, 0.01, 0.01, 0.02, 0.02, 0.0201])  # before and after each check
    looks: list[float] = []
    clock = SimpleNamespace(
        process_time=lambda: next(used), perf_counter=time.perf_counter, sleep=looks.append
    )
    monkeypatch.setattr(decode_worker, "time", clock)
    decode_worker._settle()
    assert len(looks) == 3
    clock.process_time = iter(range(10**9)).__next__  # never idle
    monkeypatch.setattr(decode_worker, "_SETTLE", 0.02)
    decode_worker._settle()
