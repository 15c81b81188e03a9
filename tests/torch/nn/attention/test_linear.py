"""Linear attention equals its equation, with small chunks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from outrider.errors import ConfigError
from outrider.torch.nn.attention import HeadShape, build_attention, linear
from outrider.torch.nn.cache import SLACK, CacheSpec, Step
from tests.helpers.attention_equation import assert_same_with_gradient, heads


def build(*, causal: bool, width: int = 3) -> linear.Attention:
    attention = build_attention({"kind": "linear"}, causal=causal, shape=HeadShape(1, 1, width))
    assert isinstance(attention, linear.Attention)
    return attention.eval()


def equation(q: Tensor, k: Tensor, v: Tensor, seen: int | None) -> Tensor:
    """Every token from the weights of the first `seen` keys, or of the keys up to itself."""

    def feature(x: Tensor) -> Tensor:
        return torch.stack([one + 1 if one > 0 else one.exp() for one in x])

    rows = []
    for i in range(len(q)):
        weights = [feature(q[i]) @ feature(k[j]) for j in range(seen or i + 1)]
        mean = sum(weight * v[j] for j, weight in enumerate(weights)) / sum(weights)
        rows.append(mean)
    return torch.stack(rows)


@given(
    length=st.integers(1, 14),
    chunk=st.integers(1, 5),
    causal=st.booleans(),
    real=st.integers(1, 14),
    seed=st.integers(0, 2**16),
)
def test_matches_equation_and_its_gradient(
    length: int, chunk: int, causal: bool, real: int, seed: int
) -> None:
    q, k, v = heads(length, 3, seed=seed)
    real = length if causal else min(real, length)
    keep = (torch.arange(length) < real)[None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "CHUNK", chunk)
        fast = build(causal=causal)(*(x[None, None] for x in (q, k, v)), keep_BT=keep)[0, 0]
    slow = equation(q[:real], k, v, None if causal else real)
    assert_same_with_gradient(fast[:real], slow, (q, k, v))


@pytest.mark.parametrize("causal", [True, False])
def test_work_is_linear_in_the_length(causal: bool) -> None:
    attention = build(causal=causal, width=16)

    def flops(length: int) -> int:
        with FlopCounterMode(display=False) as counter:
            attention(*(x.detach() for x in heads(1, 1, length, 16)))
        return counter.get_total_flops()

    assert 0 < flops(8192) <= 8.1 * flops(1024)


def test_decoding_memory_is_constant() -> None:
    """The cache does not grow with the prompt: it holds the sum and one extend."""
    attention = build(causal=True, width=4)
    room = CacheSpec(1, 5000, 1, 4, torch.float64, torch.device("cpu"))
    held = []
    for length in (500, 4000):
        cache = attention.new_cache(room)
        q, k, v = (x.detach() for x in heads(1, 1, length + 3, 4))
        prompt, more = ([x[:, :, part] for x in (q, k, v)] for part in _parts(length))
        attention.extend(*prompt, cache, Step([0], length, [length], room.device))
        held.append(cache.nbytes)
        found = attention.extend(*more, cache, Step([length], 3, [3], room.device))
        torch.testing.assert_close(found, attention(q, k, v)[:, :, length:])
    assert held[0] == held[1] <= 8 * (4 * 5 + SLACK * (4 + 5 + 1))
    assert attention.slots(65_536) == attention.slots(1_024)


def _parts(length: int) -> tuple[slice, slice]:
    return slice(length), slice(length, None)


def test_a_long_sum_in_half_precision_stays_accurate() -> None:
    """Summed in bfloat16, the mean of thousands of equal values would drift."""
    q, k, _ = (x.detach().bfloat16() for x in heads(1, 1, 4000, 8))
    v = torch.full_like(q, 1.5)
    found = build(causal=True, width=8)(q, k, v)
    torch.testing.assert_close(found, v, rtol=0.01, atol=0)


def test_other_scores_are_refused() -> None:
    spec = {"kind": "linear", "score": "dot"}
    with pytest.raises(ConfigError, match=r"x\.score: 'linear' can only do 'scaled_dot'"):
        build_attention(spec, causal=True, shape=HeadShape(1, 1, 4), key="x")
