"""The peak memory counted by the system equals the memory used."""

import sys
from types import SimpleNamespace

import pytest

from outrider.runtime import memory
from outrider_lab.bench.process import run_alone

MIB = 2**20


def fill_twice() -> tuple[int, int, int]:
    before = memory.resident_bytes()
    held = bytearray(64 * MIB)
    first = memory.peak_bytes()
    del held
    memory.reset_peak()
    return before, first, memory.peak_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can be reset on Linux alone")
def test_a_peak_is_counted_and_reset() -> None:
    before, first, second = run_alone(fill_twice)
    assert first >= before + 60 * MIB
    assert second < first - 40 * MIB


def test_other_systems_use_their_own_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda _: SimpleNamespace(ru_maxrss=3))
    monkeypatch.setattr(memory, "_read_status", lambda _: None)
    monkeypatch.setitem(sys.modules, "resource", usage)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert (memory.peak_bytes(), memory.resident_bytes()) == (3, 3)
    monkeypatch.setattr(sys, "platform", "freebsd")
    assert memory.peak_bytes() == 3 * 1024
