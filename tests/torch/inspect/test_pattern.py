"""Patterns: visible pairs equal the predicate, computed pairs those of the kernels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from outrider.errors import ConfigError
from outrider.show.pattern import pooled
from outrider.torch.inspect.attention_trace import computed_pairs, marked_heads, runs_dense
from outrider.torch.inspect.pattern import find_pattern
from outrider.torch.nn.attention import (
    AttentionConfig,
    Cost,
    HeadShape,
    attention_kinds,
    build_attention,
    load_attention,
)
from outrider.torch.nn.attention.causal import Attention as Causal
from outrider_lab.bench.attention.scaling import scaling_options

SHAPE = HeadShape(2, 1, 8)


def test_a_dense_triangle_is_computed_as_a_triangle() -> None:
    attention = build_attention({"kind": "causal"}, causal=True, shape=SHAPE)
    expected = torch.ones(9, 9, dtype=torch.bool).tril().expand(2, -1, -1)
    assert torch.equal(computed_pairs(attention, 9), expected)
    assert runs_dense(attention, 9)


class Blocked(Causal):
    """Blocks of two queries attend to their own keys and those of the previous block."""

    def run(self, q, k, v, keep):
        q = q.unflatten(2, (-1, 2)).transpose(1, 2).flatten(0, 1)
        k, v = (F.pad(x, (0, 0, 2, 0)).unfold(2, 4, 2) for x in (k, v))
        k, v = (x.permute(0, 2, 1, 4, 3).flatten(0, 1) for x in (k, v))
        out = F.scaled_dot_product_attention(q, k, v)
        return out.unflatten(0, (1, -1)).transpose(1, 2).flatten(2, 3)


def test_blocks_are_computed_whole() -> None:
    attention = Blocked(AttentionConfig(), causal=True, shape=HeadShape(2, 2, 8))
    at = torch.arange(12) // 2
    i, j = at[:, None], at[None]
    expected = ((i == j) | (i == j + 1)).expand(2, -1, -1)
    assert torch.equal(computed_pairs(attention, 12), expected)
    assert not runs_dense(attention, 12)


def test_custom_operators_are_traced() -> None:
    attention = build_attention({"kind": "sliding", "window": 8}, causal=True, shape=SHAPE)
    assert not runs_dense(attention, 600)
    share = float(computed_pairs(attention, 600).double().mean())
    assert attention.cost(600).pairs / 600**2 < share < 0.5


@pytest.mark.parametrize("kind", attention_kinds())
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [75, 301])
def test_everything_seen_is_computed(kind: str, causal: bool, length: int) -> None:
    variant = load_attention(kind).Attention
    if not (variant.causal_ok if causal else variant.two_sided_ok):
        return
    pattern = find_pattern(kind, scaling_options(kind, length), causal=causal, length=length)
    if not pattern.example:
        assert sorted(head for one in pattern.heads for head in one.heads) == [1, 2, 3, 4]
    for one in pattern.heads:
        assert one.seen_TT.shape == (length, length)
        assert 0 < one.seen <= 1
        if one.computed_TT is not None:
            assert not (one.seen_TT & ~one.computed_TT).any()


class Sorted(Causal):
    """Uses plain products over reordered rows, scaled and padded."""

    def run(self, q, k, v, keep):
        order = torch.arange(q.shape[2] - 1, -1, -1)
        q, k, v = (F.pad(x[:, :, order] * 3, (0, 0, 0, 2)) for x in (q, k, v))
        return ((q @ k.transpose(-1, -2)).softmax(-1) @ v)[:, :, :-2]


def test_pairs_are_followed_through_sorting_scaling_and_padding() -> None:
    attention = Sorted(AttentionConfig(), causal=True, shape=HeadShape(2, 2, 8))
    assert computed_pairs(attention, 11).all()
    assert marked_heads(attention, 11)[0].shape == (1, 2, 11, 8)


class Untraceable(Causal):
    """Uses no product of queries and keys."""

    def run(self, q, k, v, keep):
        return v

    def cost(self, length):
        return Cost(0, 0)


def test_untraceable_pairs_give_none() -> None:
    attention = Untraceable(AttentionConfig(), causal=True, shape=HeadShape(2, 2, 8))
    assert computed_pairs(attention, 11) is None


def test_default_length_shows_the_pattern() -> None:
    pattern = find_pattern("sliding", {"window": 5})
    assert pattern.heads[0].seen < 0.3
    assert pattern.heads[0].computed < 0.9
    assert pattern.settings == "window=5"
    assert pattern.place == f"in a decoder, {pattern.length} tokens"
    assert find_pattern("full").place == "in an encoder, 64 tokens"


def test_dense_pass_of_a_sparse_pattern_is_explained() -> None:
    short = find_pattern("lsh", length=64)
    assert short.heads[0].computed > 2 * short.heads[0].seen
    assert "one dense pass is faster here" in short.reason
    assert find_pattern("sliding", {"window": 5}).reason == ""
    assert find_pattern("causal", length=9).reason == find_pattern("full", length=9).reason == ""


def test_a_wrong_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="--length: got 0, expected 1 to"):
        find_pattern("causal", length=0)


def test_pooling_averages_shares() -> None:
    pairs = np.tri(5, dtype=bool)
    assert np.array_equal(pooled(pairs, 5), pairs)
    shares = pooled(pairs, 3)
    assert shares.shape == (3, 3)
    assert shares[0].tolist() == [0.75, 0, 0]
    assert shares[2, 2] == 1


def test_settings_are_written_as_on_a_command_line() -> None:
    pattern = find_pattern("causal", length=4)
    parts = [{"heads": 2, "kind": "causal"}, {"heads": 2, "kind": "full"}]
    shown = replace(pattern, options={"parts": parts, "redraw": True}).settings
    assert shown == "parts=[{heads: 2, kind: causal}, {heads: 2, kind: full}]  redraw=true"
