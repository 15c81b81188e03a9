"""A packed linear layer equals the plain one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.torch import backend as torch_backend
from outrider.torch.backend import TorchBackend
from outrider.torch.nn import linear
from outrider.torch.nn.linear import PACKED_FROM, Linear, packable
from tests.helpers import tiny
from tests.helpers.tensor_calls import torch_calls

needs_packing = pytest.mark.skipif(
    not packable(torch.zeros(1, 1)), reason="this PyTorch cannot pack weights"
)


@pytest.fixture
def every_weight_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack the small weights of a test too, which would stay unpacked otherwise."""
    monkeypatch.setattr(linear, "SMALL", 0)


@needs_packing
@given(
    rows=st.integers(1, 3 * PACKED_FROM),
    inside=st.integers(1, 40),
    outside=st.integers(1, 40),
    bias=st.booleans(),
)
def test_packed_equals_plain(rows: int, inside: int, outside: int, bias: bool) -> None:
    layer = Linear(inside, outside, bias=bias)
    x = torch.randn(2, rows, inside)
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "SMALL", 0)
        plain = layer(x)
        layer.pack_weight()
        assert layer.packed is not None
        packed = layer(x)
    torch.testing.assert_close(packed, plain, rtol=1e-5, atol=1e-5)


@needs_packing
@pytest.mark.parametrize(
    ("numbers", "packs", "least"),
    [
        (linear.SMALL - 1, False, None),
        (linear.SMALL, True, 2 * PACKED_FROM),
        (linear.LARGE - 1, True, 2 * PACKED_FROM),
        (linear.LARGE, True, PACKED_FROM),
    ],
)
def test_smaller_weights_need_more_rows(
    numbers: int, packs: bool, least: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(linear, "_packed_product", lambda x, *_: calls.append(len(x)) or x)
    layer = Linear(numbers, 1)
    layer.pack_weight()
    assert (layer.packed is not None) == packs
    with torch.inference_mode():
        for rows in (1, PACKED_FROM - 1, PACKED_FROM, 2 * PACKED_FROM - 1, 2 * PACKED_FROM):
            layer(torch.zeros(rows, numbers))
    sizes = (PACKED_FROM, 2 * PACKED_FROM - 1, 2 * PACKED_FROM)
    assert calls == ([] if least is None else [rows for rows in sizes if rows >= least])


@needs_packing
@pytest.mark.usefixtures("every_weight_is_packed")
def test_a_frozen_backend_packs_and_gives_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [[5, 6, 7, 1]] * PACKED_FROM
    tokens = torch.full((PACKED_FROM, 2), 7)
    plain = torch_calls(tiny.seq2seq())
    wanted = plain.extend(tokens, plain.encode(sources, capacity=2))
    frozen = torch_calls(tiny.seq2seq(), frozen=True)
    used = []
    real = linear.product
    monkeypatch.setattr(linear, "product", lambda *a: used.append(a[3] is not None) or real(*a))
    torch.testing.assert_close(
        frozen.extend(tokens, frozen.encode(sources, capacity=2)), wanted, rtol=1e-4, atol=1e-5
    )
    assert used
    assert all(used)


@pytest.mark.usefixtures("every_weight_is_packed")
def test_a_backend_of_a_model_in_training_never_packs() -> None:
    model = tiny.seq2seq()
    TorchBackend(model)
    assert all(m.packed is None for m in model.modules() if isinstance(m, Linear))


@pytest.mark.usefixtures("every_weight_is_packed")
def test_large_models_are_not_stored_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "PACK_UP_TO", 100)
    model = tiny.seq2seq()
    TorchBackend(model, frozen=True)
    assert all(m.packed is None for m in model.modules() if isinstance(m, Linear))


@pytest.mark.usefixtures("every_weight_is_packed")
def test_other_types_and_devices_are_left_alone() -> None:
    assert not packable(torch.zeros(1, 1, dtype=torch.bfloat16))
    assert not packable(torch.zeros(1, 1, device="meta"))
    model = tiny.seq2seq(dtype=torch.float64)
    model.pack_weights()
    assert all(m.packed is None for m in model.modules() if isinstance(m, Linear))


@pytest.mark.usefixtures("every_weight_is_packed")
def test_packed_copies_are_not_saved() -> None:
    model = tiny.seq2seq()
    names = set(model.state_dict())
    model.pack_weights()
    assert set(model.state_dict()) == names
