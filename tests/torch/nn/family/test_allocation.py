"""Step allocation equals its equation; step tables."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.torch.nn.family.allocation import (
    CODES,
    RATIO,
    REACH,
    THRESHOLD,
    WIDTH,
    StepAllocation,
    StepTable,
)


def woken(width: int, seed: int = 0) -> StepAllocation:
    """A layer with non-initial weights."""
    torch.manual_seed(seed)
    layer = StepAllocation(width).double()
    with torch.no_grad():
        layer.vote_E.normal_(std=0.3)
        layer.length_D.normal_(std=0.3)
        layer.length_bias.normal_(std=0.3)
    return layer


def code(step: int) -> Tensor:
    frequency = 10_000.0 ** (-torch.arange(0, CODES, 2, dtype=torch.float64) / CODES)
    return torch.cat([(step * frequency).sin(), (step * frequency).cos()])


def equation(layer: StepAllocation, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Masses and inputs of all reachable steps of one row [S, D], in loops."""
    count = len(h)
    ratio = (h.mean(0) @ layer.length_D + layer.length_bias).clamp(
        -math.log(RATIO), math.log(RATIO)
    )
    length = count * torch.exp(ratio)
    keys = h @ layer.content.weight.T + layer.content.bias
    spread: list[dict[int, Tensor]] = []
    for s in range(count):
        centre = (s + 0.5) * length / count
        landing = math.floor(centre.item())
        scores = {
            j: -((j + 0.5 - centre) ** 2) / (2 * WIDTH**2)
            + layer.vote_E @ torch.tanh(keys[s] + code(j))
            for j in range(max(0, landing - REACH), landing + REACH + 1)
        }
        total = torch.stack(list(scores.values())).exp().sum()
        spread.append({j: score.exp() / total for j, score in scores.items()})
    last = max(max(one) for one in spread)
    nothing = torch.zeros((), dtype=h.dtype)
    masses = [sum((one.get(j, nothing) for one in spread), nothing) for j in range(last + 1)]
    inputs = []
    for j in range(last + 1):
        mean = sum((one[j] * h[s] for s, one in enumerate(spread) if j in one), 0 * h[0])
        if masses[j] < THRESHOLD * count / length:
            inputs.append(torch.zeros_like(h[0]))
        else:
            inputs.append(layer.out.weight @ (mean / masses[j]) + layer.out.bias)
    return masses, inputs


@settings(max_examples=15)
@given(length=st.integers(1, 12), seed=st.integers(0, 99))
def test_matches_its_equation_and_gradient(length: int, seed: int) -> None:
    layer = woken(3, seed)
    h = torch.randn(1, length, 3, dtype=torch.float64, requires_grad=True)
    fast = layer(h).inputs_BJD[0]
    masses, inputs = equation(layer, h[0])
    slow = torch.stack(inputs)
    torch.testing.assert_close(layer.spread(h).sum(2)[0], torch.stack(masses))
    torch.testing.assert_close(fast, slow)
    weight, given_all = torch.randn_like(slow), [h, *layer.parameters()]
    ours = torch.autograd.grad((fast * weight).sum(), given_all)
    torch.testing.assert_close(ours, torch.autograd.grad((slow * weight).sum(), given_all))


def test_rows_are_independent() -> None:
    layer, lengths = woken(4), [9, 1, 4]
    h = torch.randn(3, 9, 4, dtype=torch.float64)
    keep = torch.arange(9) < torch.tensor(lengths)[:, None]
    together = layer(h, keep)
    place = torch.arange(60)[None]
    for row, length in enumerate(lengths):
        alone = layer(h[row : row + 1, :length])
        torch.testing.assert_close(together.at(place)[row], alone.at(place)[0])
        assert together.end_B[row] == alone.end_B[0]


@pytest.mark.parametrize("length", [1, 7, 40])
def test_the_mass_of_every_position_is_one(length: int) -> None:
    spread = woken(4).spread(torch.randn(2, length, 4, dtype=torch.float64))
    torch.testing.assert_close(spread.sum(1), torch.ones(2, length, dtype=torch.float64))


@torch.no_grad()
def test_a_new_layer_is_a_diagonal() -> None:
    layer = StepAllocation(4)
    h = torch.randn(1, 30, 4)
    torch.testing.assert_close(layer.log_length(h).exp(), torch.tensor([30.0]))
    share = layer.spread(h)[0]
    middle = share[8:22] / share[8:22].sum(1, keepdim=True)
    assert (middle @ torch.arange(30.0)).round().long().tolist() == list(range(8, 22))
    assert 30 < int(layer(h).end_B) < 30 + REACH


@torch.no_grad()
def test_the_end_follows_the_bounded_length() -> None:
    layer = StepAllocation(4)
    h = torch.randn(1, 20, 4)
    for ratio, wanted in ((0.5, 10), (2.0, 40), (100.0, 80), (0.001, 5)):
        layer.length_bias.fill_(math.log(ratio))
        assert layer.log_length(h).exp().item() == pytest.approx(wanted, rel=1e-4)
        assert wanted < int(layer(h).end_B) <= wanted + REACH


def test_unused_steps_get_zeros() -> None:
    taken = torch.tensor([[True, False, True, False], [False] * 4])
    table = StepTable(torch.ones(2, 4, 3), taken)
    assert table.at(torch.tensor([[0, 1, 2, 9]]))[0, :, 0].tolist() == [1, 0, 1, 0]
    assert table.end_B.tolist() == [3, 0]
    assert table.nbytes == 2 * 4 * 3 * 4 + 2 * 4
    table.select(torch.tensor([1, 0, 0]))
    assert table.end_B.tolist() == [0, 3, 3]
    assert table.at(torch.tensor([[0], [2], [3]]))[..., 0].tolist() == [[0], [1], [0]]


def test_lengths_stay_float32_under_autocast() -> None:
    layer = woken(8).float()
    h = torch.randn(1, 300, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(
            layer.log_length(h), layer.double().log_length(h.double()).float()
        )
