"""Shared depth: a repeated layer equals a stack of layers with equal weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.models import LanguageModel, Seq2Seq
from outrider.torch.nn.stack import SharedStack
from tests.helpers import tiny

STEPS = 3
PARTS = [
    {"position": "coordinate", "norm": "post"},
    {"position": "rotary", "encoder_attention": {"kind": "sliding", "window": 2}},
    {"position": "relative", "num_key_value_heads": 1, "residual": "gru"},
    {"decoder_attention": {"kind": "lsh", **tiny.SMALL["lsh"]}},
    {"decoder_core": "gru"},
]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def build(depth: str = "shared", **parts: Any) -> Seq2Seq:
    sizes = {"encoder_layers": STEPS, "decoder_layers": STEPS}
    return tiny.seq2seq(dtype=torch.float64, depth=depth, **sizes | parts)


def unrolled(shared: Seq2Seq, **parts: Any) -> Seq2Seq:
    """The same model with a separate copy of the layer for every step."""
    model = build("stacked", **parts)
    weights = dict(shared.state_dict())
    for name in model.state_dict():
        side, dot, rest = name.partition(".blocks.")
        if dot:
            weights[name] = weights[f"{side}.blocks.0.{rest.split('.', 1)[1]}"]
    model.load_state_dict(weights)
    return model


def batch() -> dict[str, Tensor]:
    keep = torch.arange(6) < torch.tensor([6, 2, 4])[:, None]
    source = torch.randint(4, tiny.VOCABULARY, (3, 6)) * keep
    target = torch.randint(4, tiny.VOCABULARY, (3, 7))
    return {"input_ids": source, "attention_mask": keep.long(), "labels": target}


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_equals_layers_with_equal_weights_and_their_summed_gradient(parts: dict[str, Any]) -> None:
    model, inputs = build(**parts), batch()
    plain = unrolled(model, **parts)
    one, other = model(**inputs), plain(**inputs)
    close(one.logits, other.logits)
    one.loss.backward()
    other.loss.backward()
    for name, weight in model.named_parameters():
        side, dot, rest = name.partition(".blocks.0.")
        copies = [f"{side}.blocks.{n}.{rest}" for n in range(STEPS)] if dot else [name]
        close(weight.grad, sum(plain.get_parameter(copy).grad for copy in copies))


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("parts", PARTS, ids=str)
@torch.no_grad()
def test_blocks_and_rollbacks_equal_the_whole_pass(parts: dict[str, Any]) -> None:
    model, inputs = build(**parts), batch()
    target, keep = torch.randint(4, tiny.VOCABULARY, (3, 20)), inputs["attention_mask"]
    source = inputs["input_ids"]
    whole = model(input_ids=source, attention_mask=keep, decoder_input_ids=target).logits
    state = model.open(model.encode(source, keep.bool()), keep.bool(), capacity=20)
    assert len(state.caches) == STEPS
    for block, kept in ((4, 3), (1, 1), (5, 2), (3, 3), (6, 5)):
        start = state.length_B
        at = start[:, None] + torch.arange(block)
        found = model.extend(target.gather(1, at), state)
        close(found, torch.stack([whole[row, at[row]] for row in range(3)]))
        state.rollback(start + torch.tensor([kept, 0, kept - 1]))
    rows = torch.tensor([2, 0])
    state.select(rows)
    at = state.length_B[:, None] + torch.arange(2)
    found = model.extend(target[rows].gather(1, at), state)
    close(found, torch.stack([whole[row, places] for row, places in zip(rows, at, strict=True)]))


@pytest.mark.usefixtures("on_device")
@torch.no_grad()
def test_a_language_model_continues_from_its_state() -> None:
    model: LanguageModel = tiny.language_model(
        dtype=torch.float64, depth="shared", layers=4, position="coordinate"
    )
    tokens = torch.randint(4, tiny.VOCABULARY, (2, 12))
    state = model.open(2, capacity=12)
    parts = [model.extend(tokens[:, a:b], state) for a, b in ((0, 5), (5, 6), (6, 12))]
    close(torch.cat(parts, 1), model(input_ids=tokens).logits)


def test_the_source_is_projected_once_and_the_layer_stored_once() -> None:
    model, inputs = build(), batch()
    assert isinstance(model.decoder, SharedStack)
    calls = []
    model.decoder.blocks[0].cross.kv.register_forward_hook(lambda *_: calls.append(1))
    seen: list[Tensor] = []
    memory = model.encode(inputs["input_ids"])
    model.decode(inputs["labels"], memory, seen=seen)
    assert len(calls) == 1
    assert len(seen) == STEPS  # a drafter's taps are steps
    assert not any("blocks.1" in name for name in model.state_dict())
    steps = build(encoder_layers=9, decoder_layers=9)
    assert sum(w.numel() for w in steps.parameters()) == sum(w.numel() for w in model.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": "deep"}, "depth: unknown 'deep'; expected one of stacked, shared"),
        ({"attention": [{"kind": "causal"}] * 2}, "attention: depth: shared has one layer"),
        (
            {"attention": {"kind": "strided", "use": "interleave"}},
            r"attention\.use: depth: shared has one layer, so factors cannot alternate",
        ),
        ({"memory": 3, "position": "relative"}, "depth: shared layers have no memory"),
        ({"residual": "reversible"}, "residual: depth: shared"),
    ],
    ids=str,
)
def test_unsupported_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny.language_model(**{"depth": "shared"} | changes)
