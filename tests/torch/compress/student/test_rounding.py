"""GPTQ rounding has a lower error than rounding to nearest."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.errors import ConfigError
from outrider.formats.quantised import int4_groups
from outrider.formats.safetensors import Weight
from outrider.torch.compress.student import narrow as measuring
from outrider.torch.compress.student.narrow import (
    input_moments,
    relative_error,
    round_columns,
    round_feedforwards,
)
from tests.helpers import tiny

INPUTS, OUT, TOKENS = 64, 5, 300


def product(seed: int) -> tuple[Tensor, Tensor]:
    """Correlated inputs with a constant 1 appended, and a weight matrix with a bias column."""
    dice = torch.Generator().manual_seed(seed)
    few = torch.randn(TOKENS, 20, generator=dice, dtype=torch.float64)
    mixed = torch.randn(20, INPUTS, generator=dice, dtype=torch.float64)
    h = few @ mixed + 0.3 * torch.randn(TOKENS, INPUTS, generator=dice, dtype=torch.float64)
    ones = torch.ones(TOKENS, 1, dtype=torch.float64)
    weight = torch.randn(OUT, INPUTS + 1, generator=dice, dtype=torch.float64)
    return torch.cat([h, ones], 1), weight


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_remaining_columns_compensate_rounding(seed: int) -> None:
    h, weight = product(seed)
    moments = h.T @ h
    found = round_columns(weight, moments)
    plain = weight.clone()
    array = weight[:, :-1].float().numpy()
    plain[:, :-1] = torch.from_numpy(Weight("int4", *int4_groups(array)).as_float32()).double()
    assert relative_error(weight, found, moments) < 0.5 * relative_error(weight, plain, moments)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_int4_holds_it_exactly(seed: int) -> None:
    h, weight = product(seed)
    array = round_columns(weight, h.T @ h)[:, :-1].float().numpy()
    np.testing.assert_array_equal(Weight("int4", *int4_groups(array)).as_float32(), array)


def test_remaining_columns_are_the_least_squares_fit() -> None:
    """With a single group, the remaining column is the least-squares fit."""
    h, weight = product(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "DAMPING", 0.0)
        found = round_columns(weight, h.T @ h)
    rounded, bias = found[:, :-1], found[:, -1]
    rest = h @ weight.T - h[:, :-1] @ rounded.T  # the last column is fitted, not rounded
    torch.testing.assert_close(bias, rest.mean(0), rtol=1e-6, atol=1e-8)


def test_a_model_keeps_its_other_weights() -> None:
    model = tiny.seq2seq(hidden_size=32, intermediate_size=64, dtype=torch.float64)
    dice = torch.Generator().manual_seed(1)
    batch = {
        "input_ids": torch.randint(3, 20, (40, 9), generator=dice),
        "attention_mask": torch.ones(40, 9, dtype=torch.int64),
        "labels": torch.randint(3, 20, (40, 7), generator=dice),
    }
    small = round_feedforwards(model, input_moments(model, [batch]))
    before, after = model.state_dict(), small.state_dict()
    for name, weight in after.items():
        same = bool((weight == before[name]).all())
        assert same == (".feedforward." not in name), name
    off = (small(**batch).logits - model(**batch).logits).square().mean()
    assert 0 < off < 0.05 * model(**batch).logits.var()


def test_widths_that_groups_do_not_divide() -> None:
    model = tiny.seq2seq()
    name = "encoder.blocks.0.feedforward.up"
    with pytest.raises(ConfigError, match=f"int4: needs widths .*{name}.weight' has 16"):
        round_feedforwards(model, {name: torch.eye(17)})
