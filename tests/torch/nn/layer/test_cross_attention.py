"""Cross-attention with other scores and normalisers equals the equation, also in decoding."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.errors import ConfigError
from outrider.formats.layout import first_unsupported
from outrider.torch.nn.attention import cross_options
from outrider.torch.nn.layer.heads import CrossAttention
from tests.helpers import tiny

SPECS: list[dict[str, Any]] = [
    {"score": "dot"},
    {"score": "additive"},
    {"score": "slow", "head_gate": "glu"},
    {"score": "fast", "score_positions": 5},
    {"normaliser": "tanh_exp"},
    {"score": "fast", "normaliser": "tanh_exp", "score_positions": 32},
]
WIDTH, HEADS = 12, 3


def named(spec: dict[str, Any]) -> str:
    return "-".join(map(str, spec.values()))


def build(spec: dict[str, Any], seed: int = 0) -> CrossAttention:
    torch.manual_seed(seed)
    cross = CrossAttention(WIDTH, HEADS, config=cross_options(spec)).double().eval()
    with torch.no_grad():
        for weight in cross.parameters():
            weight.normal_(std=0.4)
    return cross


def score(cross: CrossAttention, spec: dict[str, Any], h: int, q: Tensor, k: Tensor) -> Any:
    """s(q_i, k_j) by its formula, without the table."""
    kind, width = spec.get("score", "scaled_dot"), WIDTH // HEADS
    if kind == "scaled_dot":
        return q @ k / math.sqrt(width)
    if kind == "dot":
        return q @ k
    part: Any = cross.score
    query, key = part.query_HKK[h], part.key_GKK[h]
    if kind == "additive":
        return part.vector_HK[h] @ torch.tanh(q @ query + k @ key)
    if kind == "slow":
        return torch.sqrt((torch.relu(q @ query + k @ key) ** 2).sum()) / math.sqrt(width)
    one = torch.eye(width, dtype=q.dtype)
    root = math.sqrt(math.sqrt(width))
    return (q @ (one + query) / root) @ (k @ (one + key) / root) + part.bias_H[h]


def equation(cross: CrossAttention, spec: dict[str, Any], x: Tensor, memory: Tensor) -> Tensor:
    """One row without padding, position by position; x is [T, D], memory [S, D]."""
    width = WIDTH // HEADS
    q = (x @ cross.q.weight.T + cross.q.bias).view(len(x), HEADS, width)
    kv = (memory @ cross.kv.weight.T + cross.kv.bias).view(len(memory), 2 * HEADS, width)
    k, v = kv[:, :HEADS], kv[:, HEADS:]
    rows = []
    for i in range(len(x)):
        heads = []
        for h in range(HEADS):
            scores = [score(cross, spec, h, q[i, h], k[j, h]) for j in range(len(memory))]
            if spec.get("score") == "fast":
                table: Any = cross.score.table_HPP[h]  # type: ignore[union-attr]
                size = len(table)
                for j in range(len(memory)):
                    scores[j] = scores[j] + (table[i, j] if max(i, j) < size else 0.0)
            total = sum(torch.exp(s) for s in scores)
            bend = torch.tanh if spec.get("normaliser") == "tanh_exp" else torch.exp
            heads.append(sum(bend(s) / total * v[j, h] for j, s in enumerate(scores)))
        row = torch.cat(heads)
        if cross.gate is not None:
            row = row * torch.sigmoid(x[i] @ cross.gate.weight.T + cross.gate.bias)
        rows.append(row @ cross.out.weight.T + cross.out.bias)
    return torch.stack(rows)


@pytest.mark.parametrize("spec", SPECS, ids=named)
@settings(max_examples=6)
@given(targets=st.integers(1, 7), sources=st.integers(1, 8), seed=st.integers(0, 999))
def test_matches_equation_and_its_gradient(
    spec: dict[str, Any], targets: int, sources: int, seed: int
) -> None:
    cross = build(spec, seed)
    x = torch.randn(1, targets, WIDTH, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(1, sources, WIDTH, dtype=torch.float64, requires_grad=True)
    wanted = [x, memory, *cross.parameters()]
    upon = torch.randn(1, targets, WIDTH, dtype=torch.float64)
    found = cross(x, cross.source(memory, None))
    printed = equation(cross, spec, x[0], memory[0])[None]
    torch.testing.assert_close(found, printed)
    ours = torch.autograd.grad(found, wanted, upon, allow_unused=True)
    theirs = torch.autograd.grad(printed, wanted, upon, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            torch.zeros(()).double() if one is None else one,
            torch.zeros_like(one) if other is None and one is not None else other,
        )


@pytest.mark.parametrize("spec", SPECS, ids=named)
def test_padding_is_masked_and_weights_reproduce_the_output(spec: dict[str, Any]) -> None:
    cross = build(spec)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    memory = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    source = cross.source(memory, torch.arange(7) < torch.tensor([[7], [4]]))
    out = cross(x, source)
    torch.testing.assert_close(out[1:], cross(x[1:], cross.source(memory[1:, :4], None)))
    weights = cross.weights(x, source)
    assert not weights[1, :, :, 4:].any()
    torch.testing.assert_close(weights @ source.v_BHSK, cross.attend(_queries(cross, x), source))


def _queries(cross: CrossAttention, x: Tensor) -> Tensor:
    return cross.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)


@pytest.mark.parametrize("residual", ["add", "reversible"])
@pytest.mark.parametrize("spec", SPECS, ids=named)
def test_steps_equal_the_whole_pass(spec: dict[str, Any], residual: str) -> None:
    """Three beams per source, so rows outnumber sources; steps of one and of several tokens."""
    model = tiny.seq2seq(dtype=torch.float64, cross_attention=spec, residual=residual)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".score." in name:
                weight.normal_(std=0.5)
    source = torch.randint(3, tiny.VOCABULARY, (2, 6))
    keep = torch.arange(6) < torch.tensor([[6], [3]])
    tokens = torch.randint(3, tiny.VOCABULARY, (6, 7))
    with torch.inference_mode():
        memory = model.encode(source, keep)
        rows = [0, 0, 0, 1, 1, 1]
        whole = model.logits(model.decode(tokens, memory[rows], keep[rows]))
        state = model.open(memory, keep, capacity=8)
        state.select(rows)
        steps = [model.extend(tokens[:, a:b], state) for a, b in ((0, 1), (1, 2), (2, 5), (5, 7))]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


def test_the_default_score_is_unchanged() -> None:
    usual, said = tiny.seq2seq(), tiny.seq2seq(cross_attention={"score": "scaled_dot"})
    assert usual.state_dict().keys() == said.state_dict().keys()
    assert first_unsupported(usual.config, {}) is None
    found = first_unsupported(tiny.seq2seq(cross_attention={"score": "slow"}).config, {})
    assert found is not None
    assert found[0] == "cross_attention"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"score": "aditive"}, r"cross_attention\.score: unknown 'aditive' .did you mean"),
        ({"normaliser": 3}, r"cross_attention\.normaliser: got 3, expected text"),
        ({"kind": "full"}, r"cross_attention\.kind: unknown option"),
        ({"score_positions": 9}, r"cross_attention\.score_positions: score 'scaled_dot' has no"),
    ],
)
def test_unsupported_options_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny.seq2seq(cross_attention=spec)


def test_halting_refuses_scores_that_need_positions() -> None:
    halting = {"depth": "shared", "halting": {}}
    with pytest.raises(ConfigError, match=r"cross_attention\.score: needs positions"):
        tiny.seq2seq(cross_attention={"score": "fast"}, **halting)
    tiny.seq2seq(cross_attention={"score": "additive"}, **halting)
