"""Every exception of the native core becomes an OutriderError."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.decoding.queries import Argmax, Logits, TopK
from outrider.errors import InputError, ResourceError, UnsupportedError
from tests.helpers import native_tiny

pytest.importorskip("outrider_native", reason="outrider-native is not installed")

from outrider.backends.native import NativeBackend, NativeState
from outrider.torch.models.folder import parts_of

SOURCE = [[4, 5, 1], [6, 1]]
LAST = [[3], [4]]


@pytest.fixture(scope="module")
def backend() -> NativeBackend:
    model = native_tiny.build("marian")
    parts = {"drafter": native_tiny.build_drafter(model), "ctc": native_tiny.build_ctc(model)}
    return NativeBackend(parts_of(model, **parts), threads=2)


class Broken:
    """A core or a state in which every call fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def _fail(self, *_: Any) -> Any:
        raise self.error

    encode = extend = argmax = draft_and_verify = draft = ctc = rollback = select = _fail
    answer = join = _fail
    lengths = bytes = property(_fail)

    def __len__(self) -> int:
        return 2


Call = Callable[[NativeBackend, NativeState], Any]
core_calls: dict[str, Call] = {
    "encode": lambda b, s: b.encode(SOURCE, capacity=3),
    "extend": lambda b, s: b.extend(LAST, s, Logits()),
    "argmax": lambda b, s: b.extend(LAST, s, Argmax()),
    "answer": lambda b, s: b.extend(LAST, s, TopK(2)),
    "draft and verify": lambda b, s: b.drafts.draft_and_verify(
        [3, 4], s, [2, 2], Argmax(), cached=[3, 3], min_survival=0.0
    ),
    "draft": lambda b, s: b.drafts.draft([3, 4], s, [2, 2]),
    "predict": lambda b, s: b.drafts.predict([3, 4], s, [[-1], [-1]]),
    "ctc": lambda b, s: b.slots.fill(s, Logits()),
    "lengths": lambda b, s: s.lengths,
    "nbytes": lambda b, s: s.nbytes,
    "rollback": lambda b, s: s.rollback([3, 3]),
    "select": lambda b, s: s.select([0]),
    "join": lambda b, s: s.join(s, [2, 3]),
    "repeat rows": lambda b, s: s.repeat_rows(2),
}
core_errors: dict[str, tuple[Callable[[], Exception], type[Exception], str]] = {
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
    "a wrong type": (lambda: TypeError("f(): incompatible"), TypeError, "^f"),
    "a wrong index": (lambda: IndexError("out of range"), IndexError, "^out of range"),
    "a wrong key": (lambda: KeyError("width"), KeyError, "^'width'"),
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
def test_errors_of_the_core_are_converted_and_invalid_calls_are_not(
    backend, monkeypatch, name, kind
) -> None:
    make, expected, message = core_errors[kind]
    error = make()
    state = NativeState(Broken(error))  # type: ignore[arg-type]
    monkeypatch.setattr(backend, "core", Broken(error))
    with pytest.raises(expected, match=message):
        core_calls[name](backend, state)


def test_too_many_threads_give_one_error_message() -> None:
    """Each thread needs 8 MiB of address space, more in all than this process may have."""
    resource = pytest.importorskip("resource")
    model = native_tiny.build("plain")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), hard))
    try:
        with pytest.raises(ResourceError, match="use fewer threads"):
            NativeBackend(parts_of(model), threads=1024)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_too_little_memory_gives_one_error_message() -> None:
    """A million positions of many wide layers; the memory is never written."""
    resource = pytest.importorskip("resource")
    backend = NativeBackend(parts_of(native_tiny.build("wide")), threads=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, hard))
    try:
        with pytest.raises(ResourceError, match="the machine ran out of memory"):
            backend.encode([[3]] * 64, capacity=1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
