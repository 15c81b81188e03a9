"""The feed-forward equals its equation, and chunks equal the whole."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.nn.layer import feedforward
from outrider.torch.nn.layer.feedforward import FeedForward


def build(*, chunks: int = 1, **changes: object) -> FeedForward:
    torch.manual_seed(0)
    options: dict[str, object] = {"activation": "silu", "gated": True} | changes
    return FeedForward(5, 7, chunks=chunks, **options).double()  # type: ignore[arg-type]


def run(layer: FeedForward, x: Tensor) -> tuple[Tensor, ...]:
    y = layer(x)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return y, *torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])


@pytest.mark.parametrize("gated", [False, True])
def test_matches_its_equation(gated: bool) -> None:
    layer = build(activation="relu", gated=gated)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    up = (x @ layer.up.weight.T + layer.up.bias).split(7, dim=-1)
    inner = up[0].clamp(min=0) * (up[1] if gated else 1)
    torch.testing.assert_close(layer(x), inner @ layer.down.weight.T + layer.down.bias)


def test_the_approximation_of_gelu_matches_its_equation() -> None:
    layer = build(activation="gelu_tanh", gated=False)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    up = x @ layer.up.weight.T + layer.up.bias
    bent = torch.tanh((2 / math.pi) ** 0.5 * (up + 0.044715 * up * up * up))
    inner = up / 2 * (1 + bent)
    torch.testing.assert_close(layer(x), inner @ layer.down.weight.T + layer.down.bias)


@settings(max_examples=20, deadline=None)
@given(
    chunks=st.integers(2, 9),
    rows=st.integers(1, 3),
    tokens=st.integers(1, 10),
    gated=st.booleans(),
)
def test_chunks_equal_the_whole(chunks: int, rows: int, tokens: int, gated: bool) -> None:
    x = torch.randn(rows, tokens, 5, dtype=torch.float64, requires_grad=True)
    found = run(build(chunks=chunks, gated=gated).train(), x)
    torch.testing.assert_close(found, run(build(gated=gated), x), rtol=1e-12, atol=1e-12)


def test_dropout_of_a_chunk_is_the_same_in_the_backward() -> None:
    layer = build(chunks=3, dropout=0.4).train()
    x = torch.randn(2, 9, 5, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    found = run(layer, x)
    after = torch.rand(1)

    def kept(inputs: Tensor) -> Tensor:
        return torch.cat([FeedForward._run(layer, piece) for piece in inputs.chunk(3, dim=1)], 1)

    layer.forward = kept  # type: ignore[method-assign]
    torch.manual_seed(1)
    torch.testing.assert_close(found, run(layer, x), rtol=1e-12, atol=1e-12)
    assert torch.equal(after, torch.rand(1)), "the backward draws nothing new"


def inner_rows(layer: FeedForward, x: Tensor) -> list[int]:
    """Numbers of positions that the inner layer computes at a time."""
    rows: list[int] = []
    hook = layer.up.register_forward_hook(lambda _, args, out: rows.append(out.shape[-2]))
    layer(x)
    hook.remove()
    return rows


def test_inputs_are_cut_into_chunks() -> None:
    layer, few, many = build(chunks=4), torch.randn(2, 8, 5), torch.randn(1, 130, 5)
    few, many = few.double(), many.double()
    assert inner_rows(layer.train(), few) == [2, 2, 2, 2]
    with torch.no_grad():
        assert inner_rows(layer.train(), few) == [2, 2, 2, 2]
        layer.eval()
        assert inner_rows(layer, few) == [8], "a decoding step is not cut"
        assert inner_rows(layer, many) == [33, 33, 33, 31]
        whole, layer.chunks = layer(many), 1
        torch.testing.assert_close(whole, layer(many), rtol=1e-12, atol=1e-12)
    assert feedforward.FEW >= 64, "no shorter than the longest draft"


def test_training_saves_only_the_narrow_input() -> None:
    def kept(chunks: int) -> int:
        widths: list[int] = []
        x = torch.randn(1, 8, 5, dtype=torch.float64, requires_grad=True)
        layer = build(chunks=chunks).train()
        weights = {one.data_ptr() for one in layer.parameters()}

        def pack(saved: Tensor) -> Tensor:
            if saved.untyped_storage().data_ptr() not in weights:
                widths.append(saved.numel())
            return saved

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            layer(x)
        return sum(widths)

    assert kept(4) < kept(1) / 2


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"activation: unknown 'rulu' .did you mean 'relu'"):
        build(activation="rulu")
