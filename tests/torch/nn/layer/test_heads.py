"""Gates and positional correlation around the attention."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.torch.nn.attention import HeadShape, build_attention
from outrider.torch.nn.cache import SLACK, Step
from outrider.torch.nn.layer.heads import SelfAttention
from outrider.torch.nn.position import Positions, Rotary

CPU = torch.device("cpu")
WIDTH = 8


def build(
    kind: str = "causal", *, causal: bool = True, correlation: int = 0, **options: Any
) -> SelfAttention:
    torch.manual_seed(0)
    attention = build_attention(
        {"kind": kind, **options}, causal=causal, shape=HeadShape(2, 1, WIDTH // 2)
    )
    layer = SelfAttention(
        WIDTH, 2, attention, kv_heads=1, rotary=Rotary(WIDTH // 2), correlation=correlation
    ).double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(std=0.5)
    return layer.eval()


def text(rows: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, length, WIDTH, dtype=torch.float64, generator=generator)


def run(layer: SelfAttention, x: Tensor, keep: Tensor | None = None) -> Tensor:
    return layer(x, Positions.upto(x.shape[1], CPU), keep)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


# --- the gate -----------------------------------------------------------------------------------


def test_a_gate_multiplies_the_output_of_a_head() -> None:
    gated = build(head_gate="glu")
    plain = copy.deepcopy(gated)
    plain.gate = None
    plain.out.weight.data, plain.out.bias.data = torch.eye(WIDTH).double(), torch.zeros(WIDTH)
    x = text(2, 6).requires_grad_()
    heads_BTD = run(plain.double(), x)
    assert gated.gate is not None
    w, b = gated.gate.weight, gated.gate.bias
    expected = torch.zeros(2, 6, WIDTH, dtype=torch.float64)
    for row in range(2):
        for t in range(6):
            opened = 1 / (1 + torch.exp(-(w @ x[row, t] + b)))
            y = gated.out.weight @ (opened * heads_BTD[row, t]) + gated.out.bias
            expected = expected.index_put((torch.tensor(row), torch.tensor(t)), y)
    found = run(gated, x)
    close(found, expected)
    weight = torch.randn_like(found)
    inputs = [x, w, b]
    for a, e in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        close(a, e)


# --- positional correlation ---------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "causal"), [("causal", True), ("full", False), ("causal", False)])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_correlation_matches_its_equation(kind: str, causal: bool, width: int) -> None:
    layer = build(kind, causal=causal, correlation=width)
    assert layer.correlation is not None
    assert layer.rotary is not None
    x = text(1, 7)
    positions = Positions.upto(7, CPU)
    raw = layer.qkv(x)[0]
    channels = 3 * WIDTH // 2
    assert layer.correlation.filter_WE.shape == (width, channels)
    ahead = (width - 1) // 2 if kind == "full" else 0
    expected = raw.clone()
    for i in range(7):
        for place in range(width):
            j = i + place - (width - 1 - ahead)
            if 0 <= j < 7:
                expected[i, :channels] += layer.correlation.filter_WE[place] * raw[j, :channels]
    q, k, v = expected.view(1, 7, 4, WIDTH // 2).transpose(1, 2).split([2, 1, 1], dim=1)
    wanted = layer.rotary(q, positions), layer.rotary(k, positions), v
    for found, right in zip(layer.project(x, positions), wanted, strict=True):
        close(found, right)


def test_correlation_starts_as_the_identity() -> None:
    layer = build(correlation=3)
    assert layer.correlation is not None
    layer.correlation.reset()
    plain = build()
    plain.load_state_dict(layer.state_dict(), strict=False)
    assert torch.equal(run(layer, text(2, 9)), run(plain, text(2, 9)))
    out = run(layer, text(2, 9)).square().sum()
    (grad,) = torch.autograd.grad(out, layer.correlation.filter_WE)
    assert bool((grad != 0).any())


def test_padding_is_masked() -> None:
    layer = build("full", causal=False, correlation=5)
    x = text(2, 12)
    keep = (torch.arange(12) < 8).expand(2, -1)
    close(run(layer, x, keep)[:, :8], run(layer, x[:, :8]))


@pytest.mark.parametrize("kind", ["causal", "sliding"])
def test_future_tokens_have_no_effect(kind: str) -> None:
    layer = build(kind, correlation=4)
    x = text(2, 40)
    before = run(layer, x)
    x[:, 20:] = 7.0
    assert torch.equal(before[:, :20], run(layer, x)[:, :20])


OPTIONS: list[dict[str, Any]] = [
    {"correlation": 4},
    {"correlation": 3, "kind": "sliding", "window": 3, "head_gate": "glu"},
    {"head_gate": "glu"},
    {"correlation": 2, "score": "additive", "normaliser": "tanh_exp"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_ragged_steps_rollbacks_and_copies_equal_the_whole_pass(options: dict[str, Any]) -> None:
    """A prompt longer than every ring, blocks of which rows keep different parts, copied rows."""
    layer, x = build(**options), text(3, 260)
    whole = run(layer, x)
    lengths, dice = [150, 3, 90], torch.Generator().manual_seed(0)
    cache = layer.new_cache(3, 260)
    assert cache.wraps == ("correlation" in options)
    with torch.no_grad():
        layer.extend(x[:, :150], cache, Step([0] * 3, 150, lengths, CPU))
        for turn in range(8):
            block = [1, 5, SLACK, 2][turn % 4] if max(lengths) < 190 else 1
            rows = [x[row, n : n + block] for row, n in enumerate(lengths)]
            step = Step(lengths, block, [block] * 3, CPU)
            found = layer.extend(torch.stack(rows), cache, step)
            wanted = [whole[row, n : n + block] for row, n in enumerate(lengths)]
            close(found, torch.stack(wanted))
            kept = torch.randint(0, min(block, 6) + 1, (3,), generator=dice).tolist()
            lengths = [n + more for n, more in zip(lengths, kept, strict=True)]
            if turn == 3:
                order = torch.tensor([1, 1, 0])
                cache.select(order, max(lengths))
                x, whole = x[order], whole[order]
                lengths = [lengths[row] for row in order.tolist()]
