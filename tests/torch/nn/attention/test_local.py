"""Local blocks with memory equal their equation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.torch.nn.attention import HeadShape
from outrider.torch.nn.attention.local import Attention, Config
from outrider.torch.nn.cache import SLACK
from tests.helpers.small_tiles import assert_equation, largest_product


@given(
    length=st.integers(1, 40),
    block=st.integers(1, 6),
    memory=st.integers(0, 9),
    causal=st.booleans(),
    real=st.integers(1, 40),
    seed=st.integers(0, 2**16),
)
def test_matches_equation_and_its_gradient(
    length: int, block: int, memory: int, causal: bool, real: int, seed: int
) -> None:
    def sees(i: int, j: int) -> bool:
        start = (i // block) * block
        return start - memory <= j < start + block

    spec = {"kind": "local", "block": block, "memory": memory}
    assert_equation(spec, causal=causal, length=length, real=real, sees=sees, seed=seed)


@given(
    length=st.integers(1, 60),
    block=st.integers(1, 9),
    memory=st.integers(0, 12),
    causal=st.booleans(),
)
def test_cost_counts_the_pairs_of_the_pattern(
    length: int, block: int, memory: int, causal: bool
) -> None:
    config = Config(block=block, memory=memory)
    attention = Attention(config, causal=causal, shape=HeadShape(1, 1, 4))
    at = torch.arange(length)
    seen = attention.sees(at[:, None], at[None])
    assert attention.cost(length).pairs == int(seen.sum())
    everything = seen.tril().sum() if causal else seen.sum()
    whole = length * (length + 1) // 2 if causal else length**2
    assert not attention.complete(length) or everything == whole


def test_long_sequences_run_in_blocks() -> None:
    attention = Attention(Config(block=32, memory=16), causal=True, shape=HeadShape(1, 1, 4))
    assert largest_product(attention, 1000) == 32 * 48


def test_cache_does_not_grow_with_length() -> None:
    attention = Attention(Config(block=100, memory=28), causal=True, shape=HeadShape(1, 1, 4))
    assert attention.slots(65_536) == attention.slots(1_024) == 127 + SLACK


@pytest.mark.parametrize(("option", "value"), [("block", 0), ("memory", -1)])
def test_sizes_are_checked(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"attention\.{option}: got {value}, expected"):
        Config(**{option: value})
