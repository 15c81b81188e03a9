"""Learned vectors for distances equal their equation, also cached and in a model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.decoding import DecodeConfig, Request, decode
from outrider.errors import ConfigError
from outrider.torch.backend import TorchBackend
from outrider.torch.inspect.positions import read_positions
from outrider.torch.models import load_model
from outrider.torch.nn.attention import HeadShape, build_attention
from outrider.torch.nn.layer.heads import SelfAttention
from outrider.torch.nn.position import Positions
from outrider.torch.nn.position.distance import DistanceTable
from tests.helpers import tiny

WIDTH, HEADS, D = 12, 2, 2
CPU = torch.device("cpu")


def layer(*, causal: bool, seed: int = 0) -> SelfAttention:
    torch.manual_seed(seed)
    kind = "causal" if causal else "full"
    attention = build_attention({"kind": kind}, causal=causal, shape=HeadShape(HEADS, HEADS, 6))
    distances = DistanceTable(6, farthest=D, two_sided=not causal)
    return SelfAttention(WIDTH, HEADS, attention, distances=distances).double()


def equation(part: SelfAttention, x: Tensor, *, causal: bool) -> Tensor:
    """One row, pair by pair."""
    length = len(x)
    q, k, v = (x @ part.qkv.weight.T + part.qkv.bias).chunk(3, dim=-1)
    table = part.distances.table.weight
    out = []
    for head in range(HEADS):
        cut = slice(6 * head, 6 * head + 6)
        rows = []
        for i in range(length):
            scores = []
            for j in range(i + 1 if causal else length):
                back = max(-D, min(D, i - j))
                a = table[back if causal else back + D]
                scores.append((q[i, cut] * (k[j, cut] + a)).sum() / 6**0.5)
            weights = torch.stack(scores).softmax(0)
            rows.append((weights[:, None] * v[: len(scores), cut]).sum(0))
        out.append(torch.stack(rows))
    return torch.cat(out, 1) @ part.out.weight.T + part.out.bias


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(1, 7))
def test_matches_equation_and_its_gradient(causal: bool, seed: int, length: int) -> None:
    part = layer(causal=causal, seed=seed)
    x = torch.randn(1, length, WIDTH, dtype=torch.float64, requires_grad=True)
    found = part(x, Positions.upto(length, CPU))
    wanted = equation(part, x[0], causal=causal)
    torch.testing.assert_close(found[0], wanted)
    way = torch.randn_like(wanted)
    inputs = [x, part.distances.table.weight, part.qkv.weight]
    ours = torch.autograd.grad((found[0] * way).sum(), inputs)
    theirs = torch.autograd.grad((wanted * way).sum(), inputs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_padding_has_no_effect() -> None:
    part = layer(causal=False)
    x, keep = torch.randn(1, 5, WIDTH, dtype=torch.float64), torch.tensor([[1, 1, 1, 0, 0]]).bool()
    with torch.no_grad():
        padded = part(x, Positions.upto(5, CPU), keep)
        alone = part(x[:, :3], Positions.upto(3, CPU))
    torch.testing.assert_close(padded[:, :3], alone)


@pytest.mark.parametrize("make", [tiny.seq2seq, tiny.language_model])
def test_steps_equal_one_pass(make: Any) -> None:
    model = make(position="distance", relative_distance=3, dtype=torch.float64)
    backend = TorchBackend(model)
    source = (5, 6, 7, 1) if make is tiny.seq2seq else ()
    rows = [
        Request(source=source, prompt=(8, 9, 4), max_new_tokens=9),
        Request(source=source[1:], prompt=(7,), max_new_tokens=6),
    ]
    texts = decode(backend, rows, DecodeConfig())
    for row, (text, *_) in zip(rows, texts, strict=True):
        fed = [backend.start, *row.prompt, *text.tokens]
        ids = torch.tensor([fed])
        given = {"decoder_input_ids": ids} if source else {"input_ids": ids}
        if source:
            given["input_ids"] = torch.tensor([row.source])
        likeliest = model(**given).logits[0].argmax(-1)[len(row.prompt) :]
        assert likeliest[: len(text.tokens)].tolist() == list(text.tokens)


def test_each_layer_has_its_own_saved_table(tmp_path: Path) -> None:
    model = tiny.seq2seq(position="distance")
    names = [name for name in model.state_dict() if "distances" in name]
    assert len(names) == 4
    shapes = {len(model.state_dict()[name]) for name in names}
    assert shapes == {17, 33}, "16 back, and as many ahead in an encoder"
    model.save_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7, 1]])
    torch.testing.assert_close(load_model(tmp_path).encode(ids), model.encode(ids))
    encoder, decoder = read_positions(model, 40)
    assert encoder.by_distance_HT.shape == decoder.by_distance_HT.shape == (1, 17)
    assert encoder.by_distance_HT[0, 0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decoder_attention": {"kind": "sliding", "window": 2}}, "position: 'distance' goes with"),
        ({"residual": "reversible", "norm": "pre"}, "position: 'distance' does not go with resid"),
        ({"relative_distance": 0}, "relative_distance: got 0, expected 1"),
        ({"relative_buckets": 8}, "relative_buckets: has no effect with position: distance"),
    ],
)
def test_unsupported_options_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tiny.seq2seq(**{"position": "distance"} | changes)
