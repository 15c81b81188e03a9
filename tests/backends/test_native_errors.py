"""Whatever the native core throws, and wherever, is an error of our tree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import native_tiny
from outrider.errors import InputError, OutriderError, ResourceError, UnsupportedError

pytest.importorskip("outrider_native", reason="outrider-native is not installed")

from outrider.backends.native import NativeBackend, NativeState

WORDS = 37
SOURCE = [[4, 5, 1], [6, 1]]
LAST_B1 = torch.tensor([[3], [4]])


@pytest.fixture(scope="module")
def backend() -> NativeBackend:
    model = native_tiny.build("marian")
    parts = {"drafter": native_tiny.build_drafter(model), "ctc": native_tiny.build_ctc(model)}
    return NativeBackend(model, threads=2, **parts)


class Broken:
    """A core, or one of its states, of which every call fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def _fail(self, *_: Any) -> Any:
        raise self.error

    encode = extend = likeliest = ride = draft = ctc = rollback = select = _fail
    lengths = bytes = source_lengths = property(_fail)

    def __len__(self) -> int:
        return 2


Call = Callable[[NativeBackend, NativeState], Any]
core_calls: dict[str, Call] = {
    "encode": lambda b, s: b.encode(SOURCE, capacity=3),
    "extend": lambda b, s: b.extend(LAST_B1, s),
    "likeliest": lambda b, s: b.likeliest([[3], [4]], s, []),
    "ride": lambda b, s: b.ride([3, 4], s, 2, held=[3, 3], worth=0.0, forbidden=[]),
    "draft": lambda b, s: b.draft(LAST_B1, s, 2),
    "predict": lambda b, s: b.predict(LAST_B1, s, torch.tensor([[-1], [-1]])),
    "ctc": lambda b, s: b.ctc(s),
    "length_B": lambda b, s: s.length_B,
    "nbytes": lambda b, s: s.nbytes,
    "rollback": lambda b, s: s.rollback(torch.tensor([3, 3])),
    "select": lambda b, s: s.select(torch.tensor([0])),
    "fan": lambda b, s: s.fan(2),
}
core_errors: dict[str, tuple[Callable[[], Exception], type[OutriderError], str]] = {
    "no memory": (
        lambda: MemoryError("std::bad_alloc"),
        ResourceError,
        "ran out of memory; give smaller",
    ),
    "no threads": (
        lambda: OSError(11, "try again"),
        ResourceError,
        "native: try again; use fewer threads",
    ),
    "a wrong value": (lambda: ValueError("there is no row"), InputError, "native: there is no row"),
    "a wrong type": (
        lambda: TypeError(
            "f(): incompatible. The following argument types are supported:\n1. f(int)"
        ),
        InputError,
        r"native: f\(\): incompatible$",
    ),
    "a wrong index": (lambda: IndexError("out of range"), InputError, "native: out of range"),
    "a wrong key": (lambda: KeyError("words"), InputError, "native: 'words'"),
    "too large": (lambda: OverflowError("too large"), InputError, "native: too large"),
    "a fault": (
        lambda: RuntimeError("a fault"),
        UnsupportedError,
        "native: a fault; use backend torch",
    ),
    "without a word": (
        lambda: RuntimeError(),
        UnsupportedError,
        "native: RuntimeError; use backend torch",
    ),
}


@pytest.mark.parametrize("kind", core_errors)
@pytest.mark.parametrize("name", core_calls)
def test_whatever_the_core_throws_is_an_error_of_our_tree(backend, monkeypatch, name, kind) -> None:
    make, expected, message = core_errors[kind]
    error = make()
    state = NativeState(Broken(error))  # type: ignore[arg-type]
    monkeypatch.setattr(backend, "core", Broken(error))
    with pytest.raises(expected, match=message):
        core_calls[name](backend, state)


def test_slots_of_a_state_that_cannot_say_its_lengths(backend, monkeypatch) -> None:
    class Half(Broken):
        def ctc(self, *_: Any) -> Any:
            return np.zeros((2, 3, WORDS), np.float32)

    half = Half(RuntimeError("a fault"))
    monkeypatch.setattr(backend, "core", half)
    with pytest.raises(UnsupportedError, match="a fault"):
        backend.ctc(NativeState(half))  # type: ignore[arg-type]


def test_threads_that_the_system_does_not_give_are_one_sentence() -> None:
    """Each wants 8 MiB of addresses for its stack, of which this process may not have so many."""
    resource = pytest.importorskip("resource")
    model = native_tiny.build("plain")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), hard))
    try:
        with pytest.raises(ResourceError, match="use fewer threads"):
            NativeBackend(model, threads=1024)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_more_memory_than_there_is_gives_one_sentence() -> None:
    """A million places of many wide layers; nothing of it is ever touched."""
    resource = pytest.importorskip("resource")
    backend = NativeBackend(native_tiny.build("wide"), threads=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, hard))
    try:
        with pytest.raises(ResourceError, match="the machine ran out of memory"):
            backend.encode([[3]] * 64, capacity=1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
