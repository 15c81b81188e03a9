"""Sliding-window attention equals its equation, with small blocks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.torch.nn.attention import HeadShape
from outrider.torch.nn.attention.sliding import Attention, Config
from outrider.torch.nn.cache import SLACK
from tests.helpers.small_tiles import assert_equation, largest_product


@given(
    length=st.integers(1, 40),
    window=st.integers(1, 5),
    causal=st.booleans(),
    real=st.integers(1, 40),
    seed=st.integers(0, 2**16),
)
def test_matches_equation_and_its_gradient(
    length: int, window: int, causal: bool, real: int, seed: int
) -> None:
    def sees(i: int, j: int) -> bool:
        return abs(i - j) < window

    spec = {"kind": "sliding", "window": window}
    assert_equation(spec, causal=causal, length=length, real=real, sees=sees, seed=seed)


@pytest.mark.parametrize("causal", [True, False])
def test_long_sequences_run_in_blocks(causal: bool) -> None:
    attention = Attention(Config(window=64), causal=causal, shape=HeadShape(1, 1, 4))
    largest = largest_product(attention, 1000)
    assert largest == 64 * (128 if causal else 192)


@given(length=st.integers(1, 60), window=st.integers(1, 12), causal=st.booleans())
def test_cost_counts_the_pairs_of_the_pattern(length: int, window: int, causal: bool) -> None:
    attention = Attention(Config(window=window), causal=causal, shape=HeadShape(1, 1, 4))
    at = torch.arange(length)
    assert attention.cost(length).pairs == int(attention.sees(at[:, None], at[None]).sum())


def test_cache_does_not_grow_with_length() -> None:
    attention = Attention(Config(window=128), causal=True, shape=HeadShape(1, 1, 4))
    assert attention.slots(65_536) == attention.slots(1_024) == 127 + SLACK
    assert attention.slots(10) == 10


def test_window_must_hold_the_token_itself() -> None:
    with pytest.raises(ConfigError, match=r"attention\.window: got 0, expected 1 or more"):
        Config(window=0)
