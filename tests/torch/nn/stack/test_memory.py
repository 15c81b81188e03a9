"""Segment memory equals one long pass; document boundaries."""

import pytest
import torch
from torch import Tensor

from outrider.errors import ConfigError, InputError
from outrider.torch.models import LanguageModel
from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack.memory import Memory
from tests.helpers import tiny

SEGMENT, MEMORY = 4, 6
BOS = 3


def build(*, places: int = MEMORY, **changes: object) -> LanguageModel:
    options = {"position": "relative", "memory": places, "max_positions": SEGMENT, "layers": 3}
    model = tiny.language_model(dtype=torch.float64, **options | changes)
    for parameter in model.parameters():  # zero biases would hide errors
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def read(model: LanguageModel, tokens: Tensor, memory: Memory | None = None) -> Tensor:
    memory = memory or model.new_memory(len(tokens))
    logits = []
    for start in range(0, tokens.shape[1], SEGMENT):
        out = model(input_ids=tokens[:, start : start + SEGMENT], memory=memory)
        memory, _ = out.memory, logits.append(out.logits)
    return torch.cat(logits, dim=1)


def local_pass(model: LanguageModel, tokens: Tensor, places: int) -> Tensor:
    """One pass over the whole text: a token sees its segment and the `places` tokens before it."""
    length = tokens.shape[1]
    positions = Positions.upto(length, tokens.device)
    i, j = torch.arange(length)[:, None], torch.arange(length)
    keep = (j <= i) & (j >= i // SEGMENT * SEGMENT - places)
    x = model.embed(model.tokens, model.decoder_position, tokens, positions)
    for block in model.decoder.blocks:

        def attention(h: Tensor, layer: torch.nn.Module = block.attention) -> Tensor:
            q, k, v = layer.project(h, positions)
            scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~keep, -torch.inf)
            return layer.merge(scores.softmax(-1) @ v, h)

        x = block.run(x, attention, None)
    return model.logits(x if model.decoder.norm is None else model.decoder.norm(x))


def text(rows: int, length: int) -> Tensor:
    return torch.randint(4, tiny.VOCABULARY, (rows, length))


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("places", [1, 3, 4, 6, 20])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"position": "rotary", "norm": "post"},
        {"position": "alibi"},
        {"position": "none", "attention": {"kind": "causal", "head_gate": "glu"}},
    ],
    ids=str,
)
def test_segments_equal_one_pass_under_a_local_pattern(
    places: int, parts: dict[str, object]
) -> None:
    model, tokens = build(places=places, **parts), text(2, 18)
    torch.testing.assert_close(
        read(model, tokens), local_pass(model, tokens, places), rtol=1e-9, atol=1e-9
    )


def test_segments_equal_the_kind_local() -> None:
    model, tokens = build(), text(2, 18)
    local = build(places=0, attention={"kind": "local", "block": SEGMENT, "memory": MEMORY})
    local.load_state_dict(model.state_dict())
    whole = local(input_ids=tokens).logits
    torch.testing.assert_close(read(model, tokens), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("on_device")
def test_a_memory_gets_no_gradient() -> None:
    model, tokens = build(), text(1, 2 * SEGMENT)
    first = model(input_ids=tokens[:, :SEGMENT], memory=model.new_memory(1))
    assert not first.memory.states_NBMD.requires_grad
    first.logits.sum().backward()
    again = model(input_ids=tokens[:, SEGMENT:], memory=first.memory)
    again.logits.sum().backward()  # would fail if it reached the first graph


def test_a_new_document_clears_the_memory_of_its_row_only() -> None:
    """Row 0 starts a document within its second segment; row 1 continues its document."""
    model, tokens = build(places=5), text(2, 14)
    tokens[0, 6] = BOS
    together = read(model, tokens)
    # Other tokens before the document have no effect; their number has, as it sets the cuts.
    other = tokens.clone()
    other[0, :6] = text(1, 6)
    torch.testing.assert_close(read(model, other)[0, 6:], together[0, 6:], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(read(model, tokens[1:])[0], together[1], rtol=1e-10, atol=1e-10)
    assert (read(model, other)[0, :6] - together[0, :6]).abs().max() > 1e-3


def test_a_reset_row_equals_a_new_row() -> None:
    model, tokens = build(), text(1, 8)
    tokens[0, 0] = BOS
    fresh = read(model, tokens)
    used = model(input_ids=text(1, SEGMENT), memory=model.new_memory(1)).memory
    torch.testing.assert_close(read(model, tokens, used), fresh, rtol=1e-10, atol=1e-10)


def test_labels_follow_the_segment() -> None:
    model, tokens = build(), text(2, SEGMENT + 1)
    out = model(input_ids=tokens[:, :-1], labels=tokens, memory=model.new_memory(2))
    wanted = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(out.loss, wanted)


def test_decoding_uses_the_last_memory_and_segment() -> None:
    """A ring of memory + segment tokens; steps equal the whole pass with that window."""
    model, tokens = build(), text(2, 90)
    window = MEMORY + SEGMENT
    with torch.no_grad():
        whole = model(input_ids=tokens).logits
        state = model.open(2, capacity=90)
        steps = [model.extend(tokens[:, t : t + 1], state) for t in range(90)]
        torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-9, atol=1e-9)
        # Three layers reach 3 (window - 1) tokens back; earlier ones have no effect.
        tail = model(input_ids=tokens[:, -3 * (window - 1) - 1 :]).logits
    torch.testing.assert_close(tail[:, -1], whole[:, -1], rtol=1e-9, atol=1e-9)
    assert model.open(1, capacity=10_000).nbytes == model.open(1, capacity=1_000).nbytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": "learned"}, "position: 'learned' counts from the start of a segment"),
        ({"attention": {"kind": "sliding"}}, r"attention: .*needs \{kind: causal\}"),
        ({"memory": -1}, "memory: got -1, expected 0 to"),
    ],
)
def test_unsupported_options_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny.language_model(**{"memory": 4, "position": "relative"} | changes)


def test_a_model_without_memory_raises_an_error() -> None:
    with pytest.raises(InputError, match=r"train one with model\.memory"):
        tiny.language_model().new_memory(1)
