"""Inverse-CDF sampling: shares of the unit interval equal softmax, also for extreme logits."""

import numpy as np
import pytest
import torch

from outrider.inverse_cdf import invert, masses

GRID = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
SCORES = torch.tensor([1.0, 3.0, -torch.inf, 2.0, 0.0])
EDGES = torch.tensor([0.0, 1e-300, 0.5, 1 - 2**-53], dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_shares_of_the_interval_equal_softmax(temperature: float) -> None:
    place = invert(masses(SCORES, temperature), GRID)
    share = place.bincount(minlength=5) / len(GRID)
    expected = (SCORES.double() / temperature).softmax(-1)
    torch.testing.assert_close(share.double(), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-6])
def test_the_lowest_temperature_takes_the_best_token(temperature: float) -> None:
    assert invert(masses(SCORES, temperature), EDGES).tolist() == [1] * len(EDGES)
    found = invert(masses(SCORES.numpy(), temperature), EDGES.numpy())
    assert found.tolist() == [1] * len(EDGES)


@pytest.mark.parametrize("temperature", [1e6, 1e300])
def test_the_highest_temperature_is_uniform_over_allowed_tokens(temperature: float) -> None:
    share = invert(masses(SCORES, temperature), GRID).bincount(minlength=5) / len(GRID)
    assert share.tolist() == pytest.approx([0.25, 0.25, 0, 0.25, 0.25], abs=1e-4)


@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("count", [1, 5])
def test_sampled_tokens_are_in_range_for_any_logits(spoilt: float, count: int) -> None:
    score = torch.full((3, count), spoilt)
    place = invert(masses(score), EDGES.expand(3, -1))
    assert place.shape == (3, len(EDGES))
    assert place.min() >= 0
    assert place.max() < count


def test_numpy_and_torch_sample_alike() -> None:
    score, uniform = torch.randn(7, 4, 9), torch.rand(7, 4, 3, dtype=torch.float64)
    found = invert(masses(score.numpy(), 0.7), uniform.numpy())
    np.testing.assert_array_equal(found, invert(masses(score, 0.7), uniform).numpy())
