"""Positions equal their equations."""

import copy
import gc
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InputError
from outrider.torch.nn.position import (
    LearnedPosition,
    Positions,
    Rotary,
    SineTable,
    SinusoidalPosition,
)
from outrider.torch.nn.position.coordinate import CoordinatePosition

CPU = torch.device("cpu")


@given(length=st.integers(1, 20), half=st.integers(1, 5))
def test_sinusoidal_equation(length: int, half: int) -> None:
    width = 2 * half
    x = torch.zeros(1, length, width, dtype=torch.float64)
    out = SinusoidalPosition(width)(x, Positions.upto(length, CPU))[0]
    for p in range(length):
        for k in range(half):
            angle = p / 10_000 ** (2 * k / width)
            assert out[p, k].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert out[p, half + k].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_sinusoidal_has_no_limit_and_separate_row_positions() -> None:
    position = SinusoidalPosition(4)
    x = torch.zeros(2, 1, 4, dtype=torch.float64)
    out = position(x, Positions(torch.tensor([[3], [70_000]]), 70_001))
    assert out[1, 0, 0].item() == pytest.approx(math.sin(70_000), abs=1e-9)
    torch.testing.assert_close(out[:1], position(x[:1], Positions(torch.tensor([[3]]), 4)))


@given(shift=st.integers(0, 50), seed=st.integers(0, 2**16))
def test_rotary_scores_depend_only_on_distance(shift: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 1, 1, 6, 8, dtype=torch.float64, generator=generator)
    rotary = Rotary(8)

    def scores(offset: int) -> torch.Tensor:
        at = Positions(torch.arange(6)[None] + offset, 6 + offset)
        return rotary(q, at) @ rotary(k, at).transpose(-1, -2)

    torch.testing.assert_close(scores(0), scores(shift), rtol=1e-9, atol=1e-9)


def test_rotary_rotates_pairs_by_the_angle() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).view(1, 1, 1, 4)
    out = Rotary(4)(x, Positions(torch.tensor([[5]]), 6)).flatten().tolist()
    for k, (a, b) in enumerate([(1.0, 3.0), (2.0, 4.0)]):
        angle = 5 / 10_000 ** (2 * k / 4)
        assert out[k] == pytest.approx(a * math.cos(angle) - b * math.sin(angle))
        assert out[k + 2] == pytest.approx(a * math.sin(angle) + b * math.cos(angle))


def test_learned_positions_are_limited_by_the_table() -> None:
    position = LearnedPosition(4, 3)
    x = torch.zeros(1, 4, 3)
    torch.testing.assert_close(position(x, Positions.upto(4, CPU))[0], position.table.weight)
    with pytest.raises(InputError, match="5 tokens are more than the 4 positions"):
        position(torch.zeros(1, 5, 3), Positions.upto(5, CPU))


def test_a_table_created_in_inference_mode_can_be_trained_with() -> None:
    rotary = Rotary(4)
    with torch.inference_mode():
        rotary(torch.ones(1, 1, 3, 4), Positions.upto(3, CPU))
    x = torch.ones(1, 1, 3, 4, requires_grad=True)
    rotary(x, Positions.upto(3, CPU)).sum().backward()
    assert x.grad is not None


def test_coordinate_adds_position_and_depth() -> None:
    x = torch.zeros(1, 3, 4, dtype=torch.float64)
    out = CoordinatePosition(4)(x, Positions.upto(3, CPU), 1)[0]
    for p in range(3):
        for k in range(2):
            place, depth = (n / 10_000 ** (2 * k / 4) for n in (p, 2))
            assert out[p, k].item() == pytest.approx(math.sin(place) + math.sin(depth))
            assert out[p, k + 2].item() == pytest.approx(math.cos(place) + math.cos(depth))


def test_sine_tables_have_full_float32_accuracy() -> None:
    """MPS has no float64; angles in float32 would be off by 0.001 at position 64k."""
    table, like = SineTable(6), torch.zeros(1, 1, 6)
    index = torch.tensor([[3, 511, 70_001]])
    sin, cos = table.look_up(Positions(index, 70_002), like)
    angle = index.double()[..., None] * 10_000 ** (-torch.arange(0, 6, 2).double() / 6)
    assert torch.equal(sin, angle.sin().float())
    assert torch.equal(cos, angle.cos().float())
    kept = [rows for rows in table._rows.values() if rows.dtype != torch.float64]
    assert [rows.dtype for rows in kept] == [torch.float32]
    table.look_up(Positions(index, 70_002), like.bfloat16())
    assert len([rows for rows in table._rows.values() if rows.dtype != torch.float64]) == 1


def test_layers_share_one_table_and_so_do_their_copies() -> None:
    first, second = Rotary(10), SinusoidalPosition(10)
    assert first.table is second.table
    assert copy.deepcopy(first).table is first.table
    assert pickle.loads(pickle.dumps(first)).table is first.table
    assert Rotary(12).table is not first.table
    del first, second
    gc.collect()
    # The table is freed with the last model that uses it.
    assert all(len(known) != 5 for known in SineTable._tables)
