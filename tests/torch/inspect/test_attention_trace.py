"""Traced weights reproduce the outputs of every kind of attention."""

import pytest
import torch

from outrider.torch.inspect.attention_trace import self_weights
from outrider.torch.nn.attention import HeadShape, attention_kinds, build_attention, load_attention
from outrider.torch.nn.layer.heads import CrossAttention
from tests.helpers.attention_equation import heads
from tests.helpers.tiny import SMALL


def build(kind: str, *, causal: bool):
    shape = HeadShape(3, 3, 8)
    spec = {"kind": kind, **SMALL.get(kind, {})}
    return build_attention(spec, causal=causal, shape=shape).double().eval()


@pytest.mark.parametrize("kind", attention_kinds())
def test_weights_times_values_are_the_outputs(kind: str) -> None:
    """21 tokens of width 8 need three passes of unit vectors, the last one partly filled."""
    q, k, v = (x.detach() for x in heads(2, 3, 21, 8))
    attention = build(kind, causal=load_attention(kind).Attention.causal_ok)
    weights = self_weights(attention, q, k)
    assert weights.shape == (2, 3, 21, 21)
    torch.testing.assert_close(weights @ v, attention.reference(q, k, v), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(weights @ v, attention(q, k, v), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", attention_kinds())
def test_no_attention_to_later_tokens_or_padding(kind: str) -> None:
    q, k, _ = (x.detach() for x in heads(2, 3, 12, 8))
    variant = load_attention(kind).Attention
    if variant.causal_ok:
        weights = self_weights(build(kind, causal=True), q, k)
        assert not weights.triu(1).any()
    if variant.two_sided_ok:
        keep = (torch.arange(12) < 9).expand(2, -1)
        weights = self_weights(build(kind, causal=False), q, k, keep_BT=keep)
        assert not weights[:, :, :9, 9:].any()


def test_shared_keys_give_every_head_its_own_weights() -> None:
    q, _, _ = (x.detach() for x in heads(1, 4, 10, 8))
    k, v, _ = (x.detach() for x in heads(1, 2, 10, 8, seed=1))
    attention = build_attention({"kind": "causal"}, causal=True, shape=HeadShape(4, 2, 8))
    weights = self_weights(attention, q, k)
    torch.testing.assert_close(weights @ v.repeat_interleave(2, dim=1), attention(q, k, v))


def test_weights_on_a_source_are_those_of_cross_attention() -> None:
    torch.manual_seed(0)
    cross = CrossAttention(12, 3).double()
    x, memory = torch.randn(2, 5, 12).double(), torch.randn(2, 7, 12).double()
    source = cross.source(memory, torch.arange(7) < torch.tensor([[7], [4]]))
    weights = cross.weights(x, source)
    assert not weights[1, :, :, 4:].any()
    out = (weights @ source.v_BHSK).transpose(1, 2).flatten(2)
    torch.testing.assert_close(cross.out(out), cross(x, source))
