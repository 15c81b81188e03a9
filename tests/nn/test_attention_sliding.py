"""Sliding-window attention against its equation: dense below a few windows, in blocks above."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_equation import assert_same_with_gradient, equation, heads
from outrider.errors import ConfigError
from outrider.nn.attention import sliding
from outrider.nn.attention.sliding import Attention, Config
from outrider.nn.cache import SLACK


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
    real = length if causal else min(real, length)
    q, k, v = heads(length, 3, seed=seed)
    keep = (torch.arange(length) < real)[None]
    attention = Attention(Config(window=window), causal=causal)
    fast = attention(q[None, None], k[None, None], v[None, None], keep_BT=keep)[0, 0]

    def sees(i: int, j: int) -> bool:
        return abs(i - j) < window and j < real and (j <= i or not causal)

    seeing = [i for i in range(length) if any(sees(i, j) for j in range(length))]
    slow = torch.cat([equation(q[i : i + 1], k, v, lambda _, j, i=i: sees(i, j)) for i in seeing])
    assert_same_with_gradient(fast[seeing], slow, (q, k, v))


@pytest.mark.parametrize("causal", [True, False])
def test_long_sequences_really_run_in_blocks(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0

    def attend(q, k, v, **options):
        nonlocal largest
        largest = max(largest, q.shape[2] * k.shape[2])
        return real_attend(q, k, v, **options)

    real_attend = sliding.attend
    monkeypatch.setattr(sliding, "attend", attend)
    q, k, v = heads(1, 1, 400, 4)
    Attention(Config(window=8), causal=causal)(q, k, v)
    assert largest == 8 * 8 * (2 if causal else 3)


@given(length=st.integers(1, 60), window=st.integers(1, 12), causal=st.booleans())
def test_cost_counts_the_pairs_of_the_pattern(length: int, window: int, causal: bool) -> None:
    attention = Attention(Config(window=window), causal=causal)
    at = torch.arange(length)
    assert attention.cost(length).pairs == int(attention.sees(at[:, None], at[None]).sum())


def test_cache_does_not_grow_with_length() -> None:
    attention = Attention(Config(window=128), causal=True)
    assert attention.slots(65_536) == attention.slots(1_024) == 127 + SLACK
    assert attention.slots(10) == 10


def test_window_must_hold_the_token_itself() -> None:
    with pytest.raises(ConfigError, match=r"attention\.window: got 0, expected 1 or more"):
        Config(window=0)
