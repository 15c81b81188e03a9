"""A large output layer is screened in four bits first; the text does not change."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider.backends import native_parts
from outrider.backends.native import NativeBackend, instruction_sets
from outrider.decoding import DecodeConfig, Request, decode
from outrider.decoding.queries import Argmax, Forbidden
from outrider.formats.folder import Parts
from outrider.torch.models.folder import parts_of
from tests.helpers import native_tiny, tiny

pytest.importorskip("outrider_native", reason="outrider-native is not installed")

SOURCES = [[3, 4, 5, 1], [6, 1], [9, 8, 7, 6, 5, 4, 1]]


@pytest.fixture
def screened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Screen small output layers too."""
    monkeypatch.setattr(native_parts, "SCREENED_BYTES", 0)


def tiny_parts() -> Parts:
    """A model with a large vocabulary, some equal embeddings, and a drafter."""
    wide = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 3000}
    model = native_tiny.rough(tiny.seq2seq(logits_bias=True, **wide), 0)
    with torch.no_grad():  # with plain random weights every text is one repeated token
        model.tokens.weight.mul_(20.0)
        model.tokens.weight[1500:1800] = model.tokens.weight[1200:1500]
    return parts_of(model, native_tiny.build_drafter(model))


def named(backend: NativeBackend, forbidden: Forbidden, rows: int) -> list[list[int]]:
    """Return the argmax tokens after random inputs of one to three tokens for each row."""
    dice, found = np.random.default_rng(0), []
    state = backend.encode(SOURCES[:rows], capacity=99)
    for step in range(30):
        fed = dice.integers(3000, size=(rows, 1 + step % 3)).tolist()
        found += backend.extend(fed, state, Argmax(forbidden)).tokens
    return found


@pytest.mark.usefixtures("screened")
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_screened_tokens_are_the_same(rows, monkeypatch) -> None:
    parts = tiny_parts()
    backends = [
        NativeBackend(parts, threads=threads, instruction_set=name)
        for name, threads in [*((name, 1) for name in instruction_sets()), ("portable", 3)]
    ]
    monkeypatch.setattr(native_parts, "SCREENED_BYTES", 1 << 60)
    plain = NativeBackend(parts, threads=1)
    more = plain.core.bytes + 64 * 3000 // 2
    assert all(one.core.bytes > more for one in backends if _screens(one))
    for forbidden in (Forbidden(), Forbidden(always=range(2, 3000, 3))):
        expected = named(plain, forbidden, rows)
        assert len({token for tokens in expected for token in tokens}) > 5
        for backend in backends:
            assert named(backend, forbidden, rows) == expected


@pytest.mark.usefixtures("screened")
def test_tandem_equals_greedy() -> None:
    backend = NativeBackend(tiny_parts(), threads=1)
    rows = [Request(source=source, max_new_tokens=30, seed=0) for source in SOURCES]
    greedy = decode(backend, rows, DecodeConfig(suppress=(0, 1)))
    drafted = decode(backend, rows, DecodeConfig(mode="tandem", draft_tokens=3, suppress=(0, 1)))
    assert [one[0].tokens for one in drafted] == [one[0].tokens for one in greedy]


def _screens(backend: NativeBackend) -> bool:
    return backend.instruction_set not in ("neon", "i8mm")


def test_directions_are_orthonormal_and_sorted_by_size(screened) -> None:
    parts = tiny_parts()
    turned = native_parts.weights(parts, screened=True)["head.rotation.weight"]
    assert isinstance(turned, np.ndarray)
    assert np.abs(turned @ turned.T - np.eye(64)).max() < 1e-5
    head = parts.model.weights["tokens.weight"].as_float32()
    lengths = ((head @ turned.T) ** 2).sum(0)
    order = np.argsort(-lengths)  # approximately theirs: only some rows of the head are used
    assert np.abs(order - np.arange(64)).mean() < 8


@pytest.mark.usefixtures("screened")
def test_small_narrow_and_invalid_heads_are_not_screened(monkeypatch) -> None:
    name = "head.rotation.weight"
    assert name not in native_parts.weights(tiny_parts())
    narrow = parts_of(native_tiny.build("marian"))
    assert name not in native_parts.weights(narrow, screened=True)
    broken = tiny_parts()
    broken.model.weights["tokens.weight"].data[:, 0] = np.nan
    assert name not in native_parts.weights(broken, screened=True)
    monkeypatch.setattr(native_parts, "SCREENED_BYTES", 64 * 3000 + 1)
    assert name not in native_parts.weights(tiny_parts(), screened=True)


@pytest.mark.usefixtures("screened")
def test_a_packed_file_holds_the_screening_matrix(tmp_path: Path) -> None:
    import outrider_native

    parts = tiny_parts()
    first = NativeBackend(parts, threads=1)
    path = tmp_path / "model.packed"
    first.core.save(path, "about")
    second = NativeBackend(parts, threads=1)
    shape: dict[str, Any] = {
        "model": native_parts.model_shape(parts.model.config, "int8"),
        "drafter": native_parts.drafter_shape(parts.drafter) if parts.drafter else None,
        "ctc": None,
        "instruction_set": first.instruction_set,
        "threads": 1,
    }
    second.core = outrider_native.Engine(weights=outrider_native.PackedFile(path), **shape)
    assert named(second, Forbidden(), 1) == named(first, Forbidden(), 1)
