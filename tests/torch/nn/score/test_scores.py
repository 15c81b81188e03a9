"""Scores and normalisers in every kind that supports them: equation, decoding and memory."""

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outrider.errors import ConfigError
from outrider.torch.nn.attention import (
    AttentionBase,
    HeadShape,
    attention_kinds,
    build_attention,
    load_attention,
)
from outrider.torch.nn.cache import CacheSpec, Step
from outrider.torch.nn.kernel import blockwise as blocks
from outrider.torch.nn.layer.heads import SelfAttention
from outrider.torch.nn.position import Positions
from outrider.torch.nn.score import score_names
from tests.helpers.attention_equation import heads

CPU = torch.device("cpu")
WIDTH = 4
PATTERNS: dict[str, dict[str, Any]] = {"causal": {}, "sliding": {"window": 3}}
SCORED = [
    (score, normaliser)
    for score in ("scaled_dot", "additive", "slow", "fast")
    for normaliser in ("softmax", "tanh_exp")
    if (score, normaliser) != ("scaled_dot", "softmax")
]


@pytest.fixture
def small_tiles(monkeypatch) -> None:
    """Use several tiles for short texts."""
    monkeypatch.setattr(blocks, "BLOCK_NUMBERS", 1)
    monkeypatch.setattr(blocks, "LEAST", 4)
    monkeypatch.setattr(blocks, "MOST", 8)


def build(
    kind: str, score: str, normaliser: str, *, causal: bool = True, seed: int = 0, **options: Any
) -> AttentionBase:
    torch.manual_seed(seed)
    shape = options.pop("shape", HeadShape(3, 3, WIDTH))
    spec = {"kind": kind, "score": score, "normaliser": normaliser, **PATTERNS.get(kind, {})}
    if score == "fast":
        spec["score_positions"] = 20
    attention = build_attention(spec | options, causal=causal, shape=shape).double().eval()
    with torch.no_grad():
        for weight in attention.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    return attention


def loop_score(attention: AttentionBase, q: Tensor, k: Tensor, head: int, i: int, j: int) -> Tensor:
    """The score of one pair, from the formulas."""
    name = attention.config.score
    root = q.shape[0] ** 0.5
    if name == "scaled_dot":
        return q @ k / root
    score = attention.scored.score
    group = head // (attention.shape.heads // attention.shape.kv_heads)
    wq, wk = score.query_HKK[head].T, score.key_GKK[group].T
    if name == "additive":
        return score.vector_HK[head] @ torch.tanh(wq @ q + wk @ k)
    if name == "slow":
        return (torch.relu(wq @ q + wk @ k) ** 2).sum() ** 0.5 / root
    one = torch.eye(len(q), dtype=q.dtype)
    mapped = ((one + wq) @ q) @ ((one + wk) @ k) / root
    inside = max(i, j) < 20
    return mapped + score.bias_H[head] + (score.table_HPP[head, i, j] if inside else 0)


def loops(attention: AttentionBase, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """y_i = sum_{j in S_i} w_ij v_j, pair by pair."""
    out = torch.zeros_like(q)
    share = q.shape[1] // k.shape[1]
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            for i in range(q.shape[2]):
                place = torch.tensor(i)
                seen = [j for j in range(q.shape[2]) if attention.sees(place, torch.tensor(j))]
                keys, values = k[row, head // share], v[row, head // share]
                scores = torch.stack(
                    [loop_score(attention, q[row, head, i], keys[j], head, i, j) for j in seen]
                )
                top = scores.tanh() if attention.config.normaliser == "tanh_exp" else scores.exp()
                weights = top / scores.exp().sum()
                y = sum(w * values[j] for w, j in zip(weights, seen, strict=True))
                out = out.index_put(tuple(torch.tensor(n) for n in (row, head, i)), y)
    return out


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def same_gradients(fast: Tensor, slow: Tensor, inputs: list[Tensor]) -> None:
    weight = torch.randn_like(slow)
    pairs = [torch.autograd.grad((y * weight).sum(), inputs) for y in (fast, slow)]
    for a, b in zip(*pairs, strict=True):
        close(a, b, 1e-9)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize(("score", "normaliser"), SCORED)
def test_equals_the_equation(kind: str, score: str, normaliser: str) -> None:
    attention = build(kind, score, normaliser, shape=HeadShape(2, 1, WIDTH))
    (q, _, _), (k, v, _) = heads(1, 2, 9, WIDTH), heads(1, 1, 9, WIDTH, seed=1)
    fast, slow = attention(q, k, v), loops(attention, q, k, v)
    close(fast, slow)
    same_gradients(fast, slow, [q, k, v, *attention.parameters()])


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("score", "normaliser"), SCORED)
def test_tiles_equal_all_pairs_at_once(score: str, normaliser: str, causal: bool) -> None:
    for kind, length in (("sliding", 31), ("causal" if causal else "full", 26)):
        attention = build(kind, score, normaliser, causal=causal)
        q, k, v = heads(2, 3, length, WIDTH)
        keep = torch.arange(length) < torch.tensor([[length], [length - 5]])
        real = keep[:, None, :, None]
        fast = attention(q, k, v, keep_BT=keep) * real
        slow = attention.reference(q, k, v, keep_BT=keep) * real
        close(fast, slow)
        same_gradients(fast, slow, [q, k, v, *attention.parameters()])


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("score", "normaliser"), SCORED)
def test_future_tokens_do_not_change_the_past(score: str, normaliser: str) -> None:
    q, k, v = (x.detach() for x in heads(2, 3, 40, WIDTH))
    attention = build("causal", score, normaliser)
    before = attention(q, k, v)
    q[:, :, 21:], k[:, :, 21:], v[:, :, 21:] = 9.0, 9.0, 9.0
    assert torch.equal(before[:, :, :21], attention(q, k, v)[:, :, :21])


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("score", "normaliser"), SCORED)
def test_a_row_in_a_batch_equals_the_row_alone(score: str, normaliser: str) -> None:
    q, k, v = heads(3, 3, 29, WIDTH)
    lengths = [29, 4, 17]
    keep = torch.arange(29) < torch.tensor(lengths)[:, None]
    attention = build("sliding", score, normaliser, causal=False)
    together = attention(q, k, v, keep_BT=keep)
    for row, n in enumerate(lengths):
        alone = attention(*(x[row : row + 1, :, :n] for x in (q, k, v)))
        close(together[row : row + 1, :, :n], alone)
        assert not together[row, :, n:].any()  # for padding with few keys, tanh_exp may overflow


@settings(max_examples=15)
@given(
    data=st.data(),
    kind=st.sampled_from(list(PATTERNS)),
    scored=st.sampled_from(SCORED),
    prompt=st.sampled_from([0, 100]),
)
def test_ragged_extends_and_rollbacks_equal_the_whole_pass(
    data: st.DataObject, kind: str, scored: tuple[str, str], prompt: int
) -> None:
    """From an empty cache, or after a prompt longer than the ring and the table of `fast`."""
    total, rows = prompt + 24, 3
    shape = HeadShape(4, 2, WIDTH)
    attention = build(kind, *scored, shape=shape)
    q, _, _ = (x.detach() for x in heads(rows, 4, total + 8, WIDTH))
    k, v, _ = (x.detach() for x in heads(rows, 2, total + 8, WIDTH, seed=1))
    whole = attention(q, k, v)
    room = CacheSpec(rows, total + 8, shape.kv_heads, WIDTH, torch.float64, CPU)
    cache = attention.new_cache(room)
    lengths = [0] * rows
    block = prompt or data.draw(st.integers(1, 8))
    while max(lengths) < total:
        index = torch.tensor(lengths)[:, None] + torch.arange(block)

        def take(x: Tensor, index: Tensor = index) -> Tensor:
            return torch.stack([x[row][:, index[row]] for row in range(rows)])

        first = not any(lengths)
        least = 1 if first else 0
        kept = [data.draw(st.integers(least, block)) for _ in range(rows)]
        kept[0] = max(kept[0], 1)
        counts = kept if first else [block] * rows  # prompts are ragged, blocks are rolled back
        with torch.no_grad():
            step = Step(lengths, block, counts, CPU)
            out = attention.extend(take(q), take(k), take(v), cache, step)
        close(out, take(whole))
        lengths = [n + new for n, new in zip(lengths, kept, strict=True)]
        block = data.draw(st.integers(1, 8))


def test_fast_starts_as_the_scaled_dot_product() -> None:
    shape = HeadShape(4, 2, 8)
    (q, _, _), (k, v, _) = heads(2, 4, 30, 8), heads(2, 2, 30, 8, seed=1)
    plain = build_attention({"kind": "causal"}, causal=True, shape=shape)
    fast = build_attention({"kind": "causal", "score": "fast"}, causal=True, shape=shape).double()
    close(fast(q, k, v), plain(q, k, v))


def test_slow_has_a_gradient_where_all_units_are_inactive() -> None:
    attention = build("causal", "slow", "softmax")
    score = attention.scored.score
    with torch.no_grad():
        score.query_HKK.copy_(torch.eye(WIDTH).expand(3, -1, -1))
        score.key_GKK.copy_(torch.eye(WIDTH).expand(3, -1, -1))
    q, k, v = heads(1, 3, 6, WIDTH)
    asleep = [(-x.detach().abs()).requires_grad_() for x in (q, k)]
    out = attention(*asleep, v)
    grads = torch.autograd.grad(out.square().sum(), [*asleep, *attention.parameters()])
    assert all(bool((grad == 0).all()) for grad in grads)


@pytest.mark.parametrize(("score", "normaliser"), SCORED)
def test_half_precision_stays_close(score: str, normaliser: str) -> None:
    q, k, v = (x.detach().float() for x in heads(2, 3, 40, WIDTH))
    attention = build("causal", score, normaliser).float()
    half = copy.deepcopy(attention).bfloat16()(*(x.bfloat16() for x in (q, k, v)))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), attention(q, k, v), rtol=0.1, atol=0.1)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("normaliser", ["softmax", "tanh_exp"])
def test_dropout_is_the_same_in_both_directions(normaliser: str) -> None:
    """The output is linear in the values, so the gradient times the values equals the output."""
    attention = build("causal", "additive", normaliser)
    attention.dropout = 0.5
    attention.train()
    q, k, v = heads(1, 3, 25, WIDTH)
    out = attention(q, k, v)
    weight = torch.randn_like(out)
    (grad,) = torch.autograd.grad((out * weight).sum(), v)
    close((grad * v).sum(), (out * weight).sum())
    if normaliser == "softmax":  # equal scores, so the kept weights add up to 1 on average
        mean = attention(0 * q, 0 * k, torch.ones_like(v)).mean()
        assert mean.item() == pytest.approx(1, abs=0.3)
    step = 1e-6
    direction = torch.randn_like(q)
    ends = []
    for sign in (1, -1):
        torch.manual_seed(2)
        ends.append((attention(q + sign * step * direction, k, v) * weight).sum())
    torch.manual_seed(2)
    (slope,) = torch.autograd.grad((attention(q, k, v) * weight).sum(), q)
    close((slope * direction).sum(), (ends[0] - ends[1]) / (2 * step), 1e-6)


def test_columns_of_a_bias_are_added_to_any_score() -> None:
    """Extra columns are scaled for scaled dot; a_i . b_j is added."""
    plain, (a, b, _) = heads(1, 3, 12, WIDTH), heads(1, 3, 12, 2, seed=1)
    whole = WIDTH + 2
    q = torch.cat([plain[0] * (whole / WIDTH) ** 0.5, a * whole**0.5], dim=-1)
    k = torch.cat([plain[1], b], dim=-1)
    v = torch.nn.functional.pad(plain[2], (0, 2))
    for score, normaliser in SCORED:
        attention = build("causal", score, normaliser)
        found = attention(q, k, v)[..., :WIDTH]
        bias = a @ b.transpose(-1, -2)
        mapped = attention.scored.queries(plain[0]), attention.scored.keys(plain[1])
        scoring = attention.scored._scoring(attention, plain[0], None, 0.0)
        tile = blocks._Block(slice(0, 12), slice(0, 12), None, 0)
        table = blocks._table(scoring, scoring.score.table(), tile)
        scores = blocks._scores(scoring.score, *mapped, table, *scoring.score.weights()) + bias
        exp = scores.exp().tril()
        top = exp if normaliser == "softmax" else scores.tanh().tril()
        close(found, top / exp.sum(-1, keepdim=True) @ plain[2])


# --- what it costs ------------------------------------------------------------------------------


def count_tiles(monkeypatch, attention: AttentionBase, length: int) -> int:
    score, tiles = attention.scored.score, []
    pairs = type(score).pairs

    def counted(self, a: Tensor, b: Tensor, *weights: Tensor) -> Tensor:
        tiles.append((a.shape[2], b.shape[2]))
        return pairs(self, a, b, *weights)

    with monkeypatch.context() as patch:
        patch.setattr(type(score), "pairs", counted)
        attention(*(x.detach() for x in heads(1, 1, length, WIDTH)))
    return len(tiles)


SMALL: dict[str, dict[str, Any]] = {
    "sliding": {"window": 3},
    "local": {"block": 4, "memory": 3},
    "local_2d": {"columns": 5, "block_rows": 2, "block_columns": 2, "margin": 1},
}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("kind", sorted(SMALL))
def test_keys_out_of_reach_are_masked(kind: str) -> None:
    """A bound from the ring's size includes the whole pattern."""
    q, k, v = (x.detach() for x in heads(1, 1, 150, WIDTH))
    shape = HeadShape(1, 1, WIDTH)
    attention = build(kind, "scaled_dot", "tanh_exp", shape=shape, **SMALL[kind])
    assert attention.reach(140, 150, 150)[0] > 0
    close(attention(q, k, v), attention.reference(q, k, v))


@pytest.mark.usefixtures("small_tiles")
def test_a_window_computes_only_its_tiles(monkeypatch) -> None:
    window, whole = (
        build(kind, "additive", "softmax", shape=HeadShape(1, 1, WIDTH))
        for kind in ("sliding", "causal")
    )
    assert count_tiles(monkeypatch, whole, 128) == sum(range(1, 33))
    assert count_tiles(monkeypatch, window, 128) <= 2 * 32
    assert count_tiles(monkeypatch, window, 256) <= 2 * 64


class Sizes(TorchDispatchMode):
    """Records the size of the largest tensor created."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes() // 4)
        return out


@pytest.mark.parametrize(
    ("kind", "score", "normaliser"),
    [("causal", "additive", "softmax"), ("full", "slow", "tanh_exp")],
)
def test_no_tensor_has_the_size_of_all_pairs(
    monkeypatch, kind: str, score: str, normaliser: str
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_NUMBERS", 1 << 15)
    length, width = 768, 8
    shape = HeadShape(1, 1, width)
    attention = build(kind, score, normaliser, causal=kind == "causal", shape=shape).float()
    q, k, v = (x.detach().float().requires_grad_() for x in heads(1, 1, length, width))
    with Sizes() as sizes:
        attention(q, k, v).square().sum().backward()
    assert q.grad is not None
    assert sizes.largest < length * length // 4, "not even a number for every pair"


PEAK = """
import resource, sys
import torch
from outrider.torch.nn.attention import HeadShape, build_attention
def run(length):
    spec = {"kind": "sliding", "window": 32, "score": "additive"}
    attention = build_attention(spec, causal=True, shape=HeadShape(1, 1, 16))
    q, k, v = torch.randn(3, 1, 1, length, 16).requires_grad_().unbind(0)
    attention(q, k, v).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(-run(64) + run(8192))
"""


def test_memory_is_not_quadratic() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    pairs = 8192 * 8192 * 4
    assert int(done.stdout) * unit < pairs / 2, "a number for every pair would take 256 MB"


# --- configs ------------------------------------------------------------------------------------


def test_dot_does_not_divide() -> None:
    torch.manual_seed(0)
    spec = {"kind": "causal", "score": "dot"}
    attention = SelfAttention(
        8, 2, build_attention(spec, causal=True, shape=HeadShape(2, 2, 4))
    ).double()
    positions = Positions.upto(5, CPU)
    q, k, v = attention.project(torch.randn(1, 5, 8, dtype=torch.float64), positions)
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    raw = q / 2  # sqrt(head_width)
    weights = (raw @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1)
    close(attention.attention(q, k, v), weights @ v)
    plain = SelfAttention(
        8, 2, build_attention({"kind": "causal"}, causal=True, shape=HeadShape(2, 2, 4))
    ).double()
    plain.load_state_dict(attention.state_dict())
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    close(attention.project(x, positions)[0], 2 * plain.project(x, positions)[0])


def takes_scores(kind: str) -> bool:
    variant = load_attention(kind).Attention
    return (
        variant.scores_ok
        and variant.positional
        and variant.extend is AttentionBase.extend
        and variant.new_cache is AttentionBase.new_cache
    )


NEEDED = {"mixed": {"parts": [{"heads": 1, "kind": "causal"}, {"kind": "sliding"}]}}


@pytest.mark.parametrize("kind", attention_kinds())
def test_every_kind_supports_scores_or_refuses_them(kind: str) -> None:
    variant = load_attention(kind).Attention
    causal = variant.causal_ok
    for option, value in (("score", "additive"), ("normaliser", "tanh_exp")):
        spec = {"kind": kind, option: value, **NEEDED.get(kind, {})}
        if takes_scores(kind):
            attention = build_attention(spec, causal=causal, shape=HeadShape(2, 2, 4))
            out = attention(*(x.float() for x in heads(1, 2, 10, 4)))
            assert bool(out.isfinite().all())
        else:
            with pytest.raises(ConfigError, match=rf"attention\.{option}: '{kind}' can only do"):
                build_attention(spec, causal=causal, shape=HeadShape(2, 2, 4))


def test_mixed_heads_may_have_different_scores() -> None:
    """Each part computes the same as alone, also in decoding."""
    parts = [{"heads": 1, "kind": "causal", "score": "slow"}, {"kind": "sliding", "window": 3}]
    torch.manual_seed(0)
    shape = HeadShape(3, 3, WIDTH)
    spec = {"kind": "mixed", "parts": parts}
    attention = build_attention(spec, causal=True, shape=shape).double().eval()
    q, k, v = (x.detach() for x in heads(2, 3, 20, WIDTH))
    whole = attention(q, k, v)
    close(whole, attention.reference(q, k, v))
    cache = attention.new_cache(CacheSpec(2, 20, 3, WIDTH, torch.float64, CPU))
    with torch.no_grad():
        for start, end in ((0, 9), (9, 10), (10, 14)):
            step = Step([start] * 2, end - start, [end - start] * 2, CPU)
            block = [x[:, :, start:end] for x in (q, k, v)]
            close(attention.extend(*block, cache, step), whole[:, :, start:end])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "adaptive"}, r"attention\.score: unknown 'adaptive'.* did you mean 'additive'"),
        ({"normaliser": "max"}, r"attention\.normaliser: unknown 'max'"),
        ({"score_positions": 8}, r"attention\.score_positions: score 'scaled_dot' has no table"),
        ({"score": "fast", "score_positions": 0}, r"score_positions: got 0, expected 1 to"),
        (
            {"score": "fast", "score_positions": True},
            r"score_positions: got True, expected a whole number or null",
        ),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(" did", r"\(did")):
        build_attention({"kind": "causal", **options}, causal=True, shape=HeadShape(1, 1, 4))


def test_the_names_equal_those_in_the_docs() -> None:
    assert score_names() == ["additive", "dot", "fast", "scaled_dot", "slow"]


@pytest.mark.parametrize("score", ["additive", "fast"])
def test_compiles_with_a_break(score: str) -> None:
    q, k, v = (x.detach() for x in heads(2, 3, 20, WIDTH))
    attention = build("causal", score, "softmax")
    close(torch.compile(attention, backend="eager")(q, k, v), attention(q, k, v))
