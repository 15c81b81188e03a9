"""Dropout has the given rate, preserves the mean, and repeats with the seed."""

import pytest
import torch

from outrider.torch.nn.dropout import dropout


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_rate_and_mean(p: float) -> None:
    torch.manual_seed(0)
    y = dropout(torch.ones(1000, 1000), p, training=True)
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=0.002)
    assert y.mean().item() == pytest.approx(1.0, rel=0.02)
    assert y[y != 0].unique().numel() == 1


def test_elements_are_independent_of_their_neighbours() -> None:
    torch.manual_seed(0)
    kept = (dropout(torch.ones(4_000_000), 0.5, training=True) != 0).float()
    for lag in (1, 2, 3, 4, 8):
        assert ((kept[lag:] * kept[:-lag]).mean() - 0.25).abs() < 0.002


def test_the_gradient_uses_the_same_mask() -> None:
    x = torch.ones(101, requires_grad=True)
    y = dropout(x, 0.4, training=True)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_the_seed_repeats_it() -> None:
    x = torch.ones(77)
    torch.manual_seed(3)
    first = dropout(x, 0.5, training=True)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x, 0.5, training=True))


@pytest.mark.parametrize(("p", "training"), [(0.5, False), (0.0, True)])
def test_nothing_happens_outside_training(p: float, training: bool) -> None:
    x = torch.ones(5)
    assert dropout(x, p, training) is x
