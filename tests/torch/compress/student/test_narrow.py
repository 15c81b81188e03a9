"""Pruning removes redundant units first and adjusts the others."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.compress.student import narrow as moments
from outrider.torch.compress.student import narrow as narrowing
from outrider.torch.compress.student.narrow import input_moments, kept_units, narrow
from tests.helpers import tiny

UNITS, OUT, TOKENS = 6, 4, 200


def feedforward(seed: int) -> tuple[Tensor, Tensor]:
    """Hidden activations with a constant 1 appended, and a weight matrix with a bias column."""
    dice = torch.Generator().manual_seed(seed)
    mixed = torch.randn(UNITS, UNITS, generator=dice, dtype=torch.float64)
    h_NU = torch.randn(TOKENS, UNITS, generator=dice, dtype=torch.float64) @ mixed + 0.3
    ones = torch.ones(TOKENS, 1, dtype=torch.float64)
    down = torch.randn(OUT, UNITS + 1, generator=dice, dtype=torch.float64)
    return torch.cat([h_NU, ones], 1), down


def fitted(h_NU: Tensor, down: Tensor, kept: list[int]) -> tuple[Tensor, float]:
    """The least-squares fit with the kept units, and its squared error."""
    wanted = h_NU @ down.T
    shown = h_NU[:, [*kept, UNITS]]
    found = torch.linalg.lstsq(shown, wanted).solution
    return found.T, float((shown @ found - wanted).square().sum())


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_removing_one_unit_is_optimal(seed: int) -> None:
    h_NU, down = feedforward(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "DAMPING", 0.0)
        kept, columns = kept_units(down, h_NU.T @ h_NU, UNITS - 1)
    tried = {rest: fitted(h_NU, down, [*rest]) for rest in combinations(range(UNITS), UNITS - 1)}
    best = min(tried, key=lambda rest: tried[rest][1])
    assert tuple(kept.tolist()) == best
    torch.testing.assert_close(columns, tried[best][0], rtol=1e-5, atol=1e-7)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), width=st.integers(1, UNITS), step=st.integers(1, 3))
def test_remaining_units_are_fitted(seed: int, width: int, step: int) -> None:
    h_NU, down = feedforward(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "DAMPING", 0.0)
        patch.setattr(narrowing, "STEP", step)
        kept, columns = kept_units(down, h_NU.T @ h_NU, width)
    assert len(kept) == width
    torch.testing.assert_close(columns, fitted(h_NU, down, kept.tolist())[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_redundant_units_are_removed_exactly(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 of 24 units duplicate the others."""
    monkeypatch.setattr(moments, "DAMPING", 1e-9)
    model = tiny.seq2seq(gated=gated, dtype=torch.float64)
    with torch.no_grad():
        for side in (model.encoder, model.decoder):
            for block in side.blocks:
                for weight in (block.feedforward.up.weight, block.feedforward.up.bias):
                    for half in weight.chunk(2 if gated else 1):
                        half[1::2] = half[::2]
    dice = torch.Generator().manual_seed(1)
    batch = {
        "input_ids": torch.randint(3, 20, (40, 9), generator=dice),
        "attention_mask": torch.ones(40, 9, dtype=torch.int64),
        "labels": torch.randint(3, 20, (40, 7), generator=dice),
    }
    small = narrow(model, input_moments(model, [batch]), 12)
    assert small.config.intermediate_size == 12
    assert {len(b.feedforward.down.weight.T) for b in small.decoder.blocks} == {12}
    before, after = model(**batch).logits, small(**batch).logits
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
    assert (tiny.seq2seq(gated=gated, dtype=torch.float64)(**batch).logits - before).abs().max() > 1


def test_padding_has_no_effect() -> None:
    model = tiny.seq2seq(dtype=torch.float64)
    ids, labels = torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9]])
    alone = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    padded = {
        "input_ids": torch.tensor([[5, 6, 7, model.config.pad_token_id]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0]]),
        "labels": torch.tensor([[8, 9, -100, -100]]),
    }
    expected = input_moments(model, [alone])
    assert len(expected) == 8, "two products of four feed-forwards"
    for name, found in input_moments(model, [padded]).items():
        torch.testing.assert_close(found, expected[name])


def test_more_units_than_the_layer_has() -> None:
    model = tiny.seq2seq()
    with pytest.raises(ConfigError, match="feedforward: got 25 inner units, expected 1 to 24"):
        narrow(model, {}, 25)
