"""Adaptive spans equal their equation, dense and in blocks, and reduce the computation."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.models import LanguageModel, load_model
from outrider.torch.nn.attention import HeadShape, adaptive_span, build_attention
from outrider.torch.nn.attention.adaptive_span import Attention, Config
from outrider.torch.nn.cache import SLACK, CacheSpec, Step
from outrider.torch.nn.kernel import soft_window
from tests.helpers.attention_equation import assert_same_with_gradient, heads
from tests.helpers.tiny import VOCABULARY, language_model

SPANS = [0.3, 6.7, 2.2, 11.9]
"""Spans in tokens, one per head, away from the corners of the clamp."""


def build(*, kv_heads: int = 4, dynamic: bool = False, **options: float) -> Attention:
    torch.manual_seed(0)
    config = Config(**{"max_span": 12, "ramp": 3, **options}, dynamic=dynamic)  # type: ignore[arg-type]
    attention = Attention(config, causal=True, shape=HeadShape(4, kv_heads, 4)).double().eval()
    with torch.no_grad():
        if attention.span_query_HK is None:
            attention.span_bias_H.copy_(torch.tensor(SPANS) / config.max_span)
        else:
            attention.span_bias_H.normal_()
            attention.span_query_HK.normal_()
    return attention


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the blocked path for short sequences, with several groups of heads."""
    monkeypatch.setattr(adaptive_span, "DENSE_UP_TO", 0)
    monkeypatch.setattr(adaptive_span, "BLOCKS", (3, 5, 5))
    monkeypatch.setattr(adaptive_span, "TOGETHER", 4)


def equation(q: Tensor, k: Tensor, v: Tensor, z_T: Tensor, ramp: int) -> Tensor:
    """y_i = sum_j m exp(s) v / sum_j m exp(s) for one head, in loops; q, k, v are [T, K]."""
    rows = []
    for i in range(len(q)):
        total, mass = torch.zeros_like(v[0]), torch.zeros_like(v[0, 0])
        for j in range(i + 1):
            m = ((ramp + z_T[i] - (i - j)) / ramp).clamp(0, 1)
            weight = m * (q[i] @ k[j] / math.sqrt(q.shape[1])).exp()
            total, mass = total + weight * v[j], mass + weight
        rows.append(total / mass)
    return torch.stack(rows)


def whole_equation(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All rows and heads, with spans computed from the parameters."""
    config, rows = attention.config, []
    for b in range(len(q)):
        for h in range(4):
            z_T = config.max_span * attention.span_bias_H[h].expand(q.shape[2])
            if attention.span_query_HK is not None:
                read_T = q[b, h] @ attention.span_query_HK[h] + attention.span_bias_H[h]
                z_T = config.max_span / (1 + (-read_T).exp())
            rows.append(equation(q[b, h], k[b, h], v[b, h], z_T, config.ramp))
    return torch.stack(rows).view_as(q)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("length", [1, 2, 9, 17])
def test_dense_matches_equation_and_its_gradient(dynamic: bool, length: int) -> None:
    q, k, v = heads(2, 4, length, 4)
    attention = build(dynamic=dynamic)
    fast, slow = attention(q, k, v), whole_equation(attention, q, k, v)
    inputs = (q, k, v) if length == 1 else (q, k, v, *attention.parameters())
    assert_same_with_gradient(fast, slow, inputs)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("length", [2, 9, 17])
def test_blocks_match_equation_and_its_gradient(dynamic: bool, length: int) -> None:
    q, k, v = heads(2, 4, length, 4)
    attention = build(dynamic=dynamic)
    fast, slow = attention(q, k, v), whole_equation(attention, q, k, v)
    assert_same_with_gradient(fast, slow, (q, k, v, *attention.parameters()))
    with torch.no_grad():
        torch.testing.assert_close(attention(q, k, v), slow)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dynamic", [False, True])
def test_blocks_with_grouped_key_value_heads(dynamic: bool) -> None:
    q, _, _ = heads(2, 4, 23, 4)
    k, v, _ = heads(2, 2, 23, 4, seed=1)
    attention = build(kv_heads=2, dynamic=dynamic)
    fast, slow = attention(q, k, v), attention.reference(q, k, v)
    assert_same_with_gradient(fast, slow, (q, k, v, *attention.parameters()))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_in_blocks_keeps_the_mean(dynamic: bool) -> None:
    q, k, v = (x.detach() for x in heads(1, 4, 12, 4))
    attention = build(dynamic=dynamic)
    wanted = attention(q, k, v)
    attention.train().dropout = 0.3
    mean = attention(*(x.expand(3000, -1, -1, -1) for x in (q, k, v))).mean(0, keepdim=True)
    torch.testing.assert_close(mean, wanted, rtol=0, atol=0.12)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_block_computes_only_keys_within_reach(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = 0
    attend = soft_window.attend_softly

    def counting(q: Tensor, k: Tensor, *rest: Any, **options: Any) -> Tensor:
        nonlocal scored
        scored += q.shape[1] * q.shape[2] * k.shape[2]
        return attend(q, k, *rest, **options)

    monkeypatch.setattr(soft_window, "attend_softly", counting)
    q, k, v = (x.detach() for x in heads(1, 4, 200, 4))
    attention = build(dynamic=dynamic)
    if dynamic:
        with torch.no_grad():
            attention.span_bias_H.fill_(-6)
            attention.span_query_HK.zero_()  # type: ignore[union-attr]
    with torch.no_grad():
        attention(q, k, v)
    reaches = [4] * 4 if dynamic else [4, 10, 6, 15]
    together = [4] * 4 if dynamic else [4, 15, 6, 15]  # spans up to 4, 8 and 16
    assert reaches == ([4] * 4 if dynamic else attention.reaches)
    assert scored <= 200 * sum(reach - 1 + 5 for reach in together)


def test_memory_for_backward_is_linear() -> None:
    """Tensors saved by autograd must not grow with the window: weights are recomputed."""
    attention = build(max_span=400)
    kept = 0

    def count(x: Tensor) -> Tensor:
        nonlocal kept
        kept += x.numel()
        return x

    q, k, v = heads(1, 4, 2000, 4)
    with torch.no_grad():
        attention.span_bias_H.fill_(0.9)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        attention(q, k, v)
    window = 4 * adaptive_span.BLOCKS[1] * (363 + adaptive_span.BLOCKS[1])
    assert kept < 4 * 4 * 2000 * 4 + 8 * window < 4 * 2000 * 363


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_decoding_with_one_ring_per_group(
    dynamic: bool, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ragged blocks with rollbacks, in total longer than the rings, equal one pass."""
    monkeypatch.setattr(adaptive_span, "GRAIN", 4)
    total, cpu = 150, torch.device("cpu")
    q, _, _ = (x.detach() for x in heads(2, 4, total, 4))
    k, v, _ = (x.detach() for x in heads(2, kv_heads, total, 4, seed=1))
    attention = build(dynamic=dynamic, kv_heads=kv_heads)
    whole = attention.reference(q, k, v)
    cache = attention.new_cache(CacheSpec(2, total, kv_heads, 4, torch.float64, cpu))
    lengths, block = [0, 0], 40
    with torch.no_grad():
        while max(lengths) + block <= total:
            index = torch.tensor(lengths)[:, None] + torch.arange(block)
            q_now, k_now, v_now, wanted = (
                torch.stack([x[r][:, index[r]] for r in range(2)]) for x in (q, k, v, whole)
            )
            step = Step(lengths, block, [block] * 2, cpu)
            out = attention.extend(q_now, k_now, v_now, cache, step)
            torch.testing.assert_close(out, wanted)
            lengths = [lengths[0] + block - 3, lengths[1] + block // 2 + 1]
            block = 7 if block == 40 else block + 1


def test_empty_slots_of_a_short_row_are_masked() -> None:
    """A cache shorter than the reach, without wrapping, with one short and one long row."""
    cpu, lengths = torch.device("cpu"), [14, 2]
    q, k, v = (x.detach() for x in heads(2, 4, 16, 4))
    attention = build(max_span=40)
    whole = attention.reference(q, k, v)
    cache = attention.new_cache(CacheSpec(2, 16, 4, 4, torch.float64, cpu))
    with torch.no_grad():
        attention.extend(*(x[:, :, :14] for x in (q, k, v)), cache, Step([0, 0], 14, lengths, cpu))
        token = (torch.stack([x[r, :, n, None] for r, n in enumerate(lengths)]) for x in (q, k, v))
        out = attention.extend(*token, cache, Step(lengths, 1, [1, 1], cpu))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(out[row, :, 0], whole[row, :, length])


def test_a_cache_has_the_length_of_each_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_span, "GRAIN", 1)
    room = CacheSpec(2, 10_000, 4, 4, torch.float64, torch.device("cpu"))
    cache = build().new_cache(room)
    slots = sum(math.ceil(3 + z) - 1 + SLACK for z in SPANS)
    assert cache.wraps
    assert cache.nbytes == 2 * slots * 4 * 2 * 8
    assert build(dynamic=True).new_cache(room).nbytes == 2 * 4 * (15 - 1 + SLACK) * 4 * 2 * 8


def test_a_span_out_of_range_gets_a_gradient_to_return() -> None:
    attention = build(penalty=1.0)
    with torch.no_grad():
        attention.span_bias_H.copy_(torch.tensor([-0.1, 0.0, 1.1, 5.0]))
    spans_H = attention.spans()[0, :, 0, 0]
    torch.testing.assert_close(spans_H, torch.tensor([1.2, 0.0, 10.8, 0.0]).double())
    (grad,) = torch.autograd.grad(spans_H[:3].sum(), attention.span_bias_H)
    assert grad[:3].tolist() == [-12, 12, -12], "descent on a span leads back to the inside"


def test_penalty_equals_the_mean_span() -> None:
    attention = build(penalty=0.5)
    penalty = attention.penalty()
    assert penalty is not None
    assert float(penalty.detach()) == pytest.approx(0.5 * sum(SPANS) / 4)
    assert build(penalty=0.0).penalty() is None


def test_penalty_of_dynamic_spans_is_the_mean_over_queries() -> None:
    attention = build(dynamic=True, penalty=0.5)
    q, k, v = heads(2, 4, 9, 4)
    attention(q, k, v)
    assert attention.penalty() is None, "nothing was trained"
    attention.train()(q, k, v)
    penalty = attention.penalty()
    assert penalty is not None
    read = torch.einsum("bhtk,hk->bht", q, attention.span_query_HK)
    spans = 12 / (1 + (-read - attention.span_bias_H[:, None]).exp())
    torch.testing.assert_close(penalty, 0.5 * spans.mean())
    assert attention.penalty() is None, "a pass is paid for once"


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_learns_saves_and_decodes_its_spans(dynamic: bool, tmp_path: Path) -> None:
    spec = {"kind": "adaptive_span", "max_span": 12, "ramp": 3, "dynamic": dynamic}
    model = language_model(attention=spec, dtype=torch.float64)
    for name, parameter in model.named_parameters():
        if "span" in name:
            torch.nn.init.uniform_(parameter, 0.1, 0.9)
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert isinstance(loaded, LanguageModel)
    tokens = torch.randint(4, VOCABULARY, (2, 120))
    with torch.no_grad():
        wanted = model.logits(model.hidden(tokens))
        loaded = loaded.double().eval()
        torch.testing.assert_close(loaded.logits(loaded.hidden(tokens)), wanted)
        state = loaded.open(2, capacity=120)
        cuts = [0, 5, 6, 56, 57, 120]
        parts = [loaded.extend(tokens[:, a:b], state) for a, b in pairwise(cuts)]
    torch.testing.assert_close(torch.cat(parts, dim=1), wanted)


@pytest.mark.parametrize(
    ("option", "value"), [("max_span", 0), ("ramp", 0), ("penalty", -1.0), ("penalty", math.nan)]
)
def test_refuses_wrong_options(option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"attention\.{option}: got .*, expected"):
        Config(**{option: value})  # type: ignore[arg-type]


def test_refuses_an_encoder() -> None:
    with pytest.raises(ConfigError, match="'adaptive_span' cannot be used in an encoder"):
        build_attention({"kind": "adaptive_span"}, causal=False, shape=HeadShape(1, 1, 4))
