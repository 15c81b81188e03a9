"""Full attention equals its equation."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.torch.nn.attention import HeadShape
from outrider.torch.nn.attention.full import Attention, Config
from tests.helpers.attention_equation import assert_same_with_gradient, equation, heads


@given(length=st.integers(1, 9), width=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_matches_equation_and_its_gradient(length: int, width: int, seed: int) -> None:
    q, k, v = heads(length, width, seed=seed)
    attention = Attention(Config(), causal=False, shape=HeadShape(1, 1, 4))
    fast = attention(q[None, None], k[None, None], v[None, None])[0, 0]
    assert_same_with_gradient(fast, equation(q, k, v, lambda i, j: True), (q, k, v))


@given(length=st.integers(2, 9), real=st.integers(1, 8), seed=st.integers(0, 2**16))
def test_padding_has_no_effect(length: int, real: int, seed: int) -> None:
    real = min(real, length)
    q, k, v = heads(length, 4, seed=seed)
    keep = (torch.arange(length) < real)[None]
    attention = Attention(Config(), causal=False, shape=HeadShape(1, 1, 4))
    fast = attention(q[None, None], k[None, None], v[None, None], keep_BT=keep)[0, 0]
    assert_same_with_gradient(fast, equation(q, k, v, lambda i, j: j < real), (q, k, v))
