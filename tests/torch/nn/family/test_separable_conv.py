"""Separable convolutions equal their equation, alone and in place of the feed-forward."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.backends.native_parts import missing
from outrider.decoding import DecodeConfig, Request, decode
from outrider.errors import ConfigError
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Ctc, CtcConfig, Drafter, DrafterConfig, load_model
from outrider.torch.nn.cache import SLACK, Step
from outrider.torch.nn.family.separable_conv import SeparableConv
from outrider.torch.nn.layer.feedforward import FeedForward
from tests.helpers import tiny

CPU = torch.device("cpu")
CONV: dict[str, Any] = {"transition": "separable_conv"}


def conv(width: int, inner: int, widths: tuple[int, int], **options: Any) -> SeparableConv:
    """A layer whose filters are not the identity."""
    given = {"activation": "relu", "ahead": False, **options}
    layer = SeparableConv(width, inner, widths=widths, **given).double()
    for part in (layer.outer_filter, layer.inner_filter):
        torch.nn.init.normal_(part.filter_WE)
    return layer


def stirred(model: Any) -> Any:
    """A model whose filters are not the identity."""
    torch.manual_seed(7)
    for name, weight in model.named_parameters():
        if name.endswith("_filter.filter_WE"):
            torch.nn.init.normal_(weight, std=0.5)
    return model


def depthwise(kernel: Tensor, rows: Tensor, ahead: int) -> Tensor:
    """Each channel separately; kernel[w] applies to the token at offset w - (W - 1 - ahead)."""
    back, found = len(kernel) - 1 - ahead, []
    for i in range(len(rows)):
        total = torch.zeros_like(rows[0])
        for w in range(len(kernel)):
            j = i + w - back
            if 0 <= j < len(rows):
                total = total + kernel[w] * rows[j]
        found.append(total)
    return torch.stack(found)


def kernel_of(weight: Tensor, ahead: int) -> Tensor:
    """The kernel: identity plus trained weight."""
    identity = torch.zeros_like(weight)
    identity[len(weight) - 1 - ahead] = 1
    return weight + identity


def equation(layer: SeparableConv, x: Tensor, ahead: bool) -> Tensor:
    """One row, position by position: depthwise, pointwise, ReLU, depthwise, pointwise."""
    first, second = layer.outer_filter.filter_WE, layer.inner_filter.filter_WE
    a, c = ((len(one) - 1) // 2 if ahead else 0 for one in (first, second))
    u = depthwise(kernel_of(first, a), x, a)
    up = torch.stack([layer.up.weight @ place + layer.up.bias for place in u])
    half = up.shape[1] // 2
    h = torch.where(up > 0, up, 0.0)
    if layer.gated:
        h = h[:, :half] * up[:, half:]
    h = depthwise(kernel_of(second, c), h, c)
    return torch.stack([layer.down.weight @ place + layer.down.bias for place in h])


@settings(max_examples=30)
@given(data=st.data())
def test_a_layer_equals_its_equation_and_padding_is_masked(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 999)))
    tokens, length = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))
    widths = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    ahead, gated = data.draw(st.booleans()), data.draw(st.booleans())
    layer = conv(3, 4, widths, ahead=ahead, gated=gated)
    longest = max(tokens, length)
    x = torch.randn(2, longest, 3, dtype=torch.float64, requires_grad=True)
    keep = torch.arange(longest) < torch.tensor([tokens, length])[:, None]
    found = layer(x, keep)
    fast = torch.cat([found[0, :tokens], found[1, :length]])
    slow = torch.cat([equation(layer, x[0, :tokens], ahead), equation(layer, x[1, :length], ahead)])
    torch.testing.assert_close(fast, slow)
    inputs, weight = [x, *layer.parameters()], torch.randn_like(slow)
    ours = torch.autograd.grad((fast * weight).sum(), inputs)
    torch.testing.assert_close(ours, torch.autograd.grad((slow * weight).sum(), inputs))


def test_a_new_layer_equals_a_feed_forward() -> None:
    model, plain = tiny.seq2seq(**CONV), tiny.seq2seq()
    missed = plain.load_state_dict(model.state_dict(), strict=False)
    assert all("_filter." in name for name in missed.unexpected_keys)
    assert len(missed.unexpected_keys) == 8
    assert not missed.missing_keys
    assert type(plain.encoder.blocks[0].feedforward) is FeedForward
    ids = torch.randint(4, 23, (2, 6))
    given = {"input_ids": ids, "decoder_input_ids": ids}
    torch.testing.assert_close(model(**given).logits, plain(**given).logits)
    assert not torch.allclose(stirred(model)(**given).logits, plain(**given).logits, atol=0.01)


@settings(max_examples=20)
@given(data=st.data(), prompt=st.sampled_from([1, 30, 150]))
@torch.no_grad()
def test_partly_rolled_back_blocks_equal_one_pass(data: st.DataObject, prompt: int) -> None:
    rows, total, width = 3, prompt + 100, 4
    widths = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    layer = conv(width, 5, widths)
    x = torch.randn(rows, total, width, dtype=torch.float64)
    whole = layer(x)
    filters = (layer.outer_filter, layer.inner_filter)
    rings = [each.new_ring(rows, total + SLACK) for each in filters]
    lengths, block = [0] * rows, prompt
    for _ in range(6):
        first = not any(lengths)
        kept = [data.draw(st.integers(1 if first else 0, block)) for _ in range(rows)]
        step = Step(lengths, block, kept if first else [block] * rows, CPU)
        given_now = torch.randn(rows, block, width, dtype=torch.float64)  # rejected tokens
        for row, (n, more) in enumerate(zip(lengths, kept, strict=True)):
            given_now[row, :more] = x[row, n : n + more]
        out = layer.extend(given_now, rings, step)
        for row, (n, more) in enumerate(zip(lengths, kept, strict=True)):
            torch.testing.assert_close(out[row, :more], whole[row, n : n + more])
        lengths = [n + more for n, more in zip(lengths, kept, strict=True)]
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(rows)))
            for ring in rings:
                ring.select(torch.tensor(order))
            x, whole, lengths = x[order], whole[order], [lengths[row] for row in order]
        block = data.draw(st.integers(1, 14))


PARTS = [
    {},
    {"norm": "post", "gated": True, "activation": "silu", "transition_widths": [4, 1]},
    {"depth": "shared", "position": "coordinate"},
    {"residual": "gru", "gate_bias": 0.0},
    {"residual": "reversible"},
    {"position_correlation": 3},
    {"encoder_core": "lstm", "decoder_core": "gru"},
    {"encoder_attention": {"kind": "local", "block": 4, "memory": 3}},
]


@pytest.mark.parametrize("parts", PARTS, ids=str)
@torch.no_grad()
def test_steps_equal_teacher_forcing_and_rows_are_independent(parts: dict[str, Any]) -> None:
    model = stirred(tiny.seq2seq(dtype=torch.float64, **CONV | parts))
    source = torch.randint(4, tiny.VOCABULARY, (3, 7))
    keep = torch.arange(7) < torch.tensor([5, 2, 7])[:, None]
    target = torch.randint(4, tiny.VOCABULARY, (3, 9))
    whole = model(input_ids=source, attention_mask=keep.long(), decoder_input_ids=target).logits
    state = model.open(model.encode(source, keep), keep, capacity=9)
    steps = [model.extend(target[:, :4], state)]
    steps += [model.extend(target[:, t : t + 1], state) for t in range(4, 9)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    for row, length in enumerate([5, 2, 7]):
        one = slice(row, row + 1)
        alone = model(input_ids=source[one, :length], decoder_input_ids=target[one]).logits
        torch.testing.assert_close(alone, whole[one])


@pytest.mark.parametrize(
    ("parts", "ahead"),
    [({}, 2), ({"encoder_core": "gru"}, 2), ({"encoder_attention": {"kind": "causal"}}, 0)],
    ids=str,
)
def test_only_two_sided_layers_look_ahead(parts: dict[str, Any], ahead: int) -> None:
    model = tiny.seq2seq(**CONV | parts)
    (encoder, decoder) = (side.blocks[0].feedforward for side in (model.encoder, model.decoder))
    assert isinstance(encoder, SeparableConv)
    assert isinstance(decoder, SeparableConv)
    assert encoder.inner_filter.ahead == ahead
    assert decoder.inner_filter.ahead == decoder.outer_filter.ahead == 0


@torch.no_grad()
def test_beams_are_repeated_and_selected() -> None:
    model = stirred(tiny.seq2seq(dtype=torch.float64, **CONV))
    source, target = torch.randint(4, 23, (2, 5)), torch.randint(4, 23, (6, 4))
    whole = model(input_ids=source.repeat_interleave(3, 0), decoder_input_ids=target).logits
    state = model.open(model.encode(source), None, capacity=9).repeat_rows(3)
    torch.testing.assert_close(model.extend(target[:, :2], state), whole[:, :2])
    rows = torch.tensor([4, 3, 3])
    state.select(rows)
    torch.testing.assert_close(model.extend(target[rows, 2:], state), whole[rows, 2:])


@pytest.mark.parametrize("kind", ["seq2seq", "language_model"])
def test_tandem_equals_greedy(kind: str) -> None:
    make = {"seq2seq": tiny.seq2seq, "language_model": tiny.language_model}[kind]
    model = stirred(make(seed=3, **CONV))
    with torch.no_grad():  # with plain random weights every text repeats one token
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "tokens" not in name:
                weight.mul_(3.0)
    torch.manual_seed(0)
    drafter = Drafter(DrafterConfig.for_target(model.config, block=6, train_block=4, rank=6))
    backend = TorchBackend(model, drafter=drafter)
    sources = [[4, 5, 6, 1], [7, 1], [8, 9, 9, 9, 9, 1]] if kind == "seq2seq" else [[]] * 3
    rows = [
        Request(source=source, prompt=prompt if kind == "language_model" else [], max_new_tokens=80)
        for source, prompt in zip(sources, [[5, 6], [7], [8, 9, 10]], strict=True)
    ]
    plain = decode(backend, rows, DecodeConfig(suppress=(0, 1)))
    drafted = decode(backend, rows, DecodeConfig(mode="tandem", draft_tokens=4, suppress=(0, 1)))
    assert [one[0].tokens for one in drafted] == [one[0].tokens for one in plain]
    assert all(len(one[0].tokens) == 80 for one in plain)
    assert len(set(plain[0][0].tokens)) > 2, "a text that says something"


@torch.no_grad()
def test_a_ctc_decoder_works_with_this_encoder() -> None:
    model = stirred(tiny.seq2seq(dtype=torch.float64, **CONV))
    ctc = Ctc(CtcConfig.for_target(model.config, layers=1)).double().bind(model).eval()
    source, keep = torch.randint(4, 23, (2, 6)), torch.arange(6) < torch.tensor([6, 4])[:, None]
    together = ctc(input_ids=source, attention_mask=keep.long()).logits
    alone = ctc(input_ids=source[1:, :4]).logits
    torch.testing.assert_close(together[1:, : alone.shape[1]], alone)


@pytest.mark.parametrize("residual", ["add", "reversible"])
def test_it_is_saved_and_trained(residual: str, tmp_path: Path) -> None:
    model = stirred(tiny.seq2seq(residual=residual, transition_widths=[2, 3], **CONV))
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    ids = torch.tensor([[5, 6, 7, 1]])
    given = {"input_ids": ids, "labels": ids}
    torch.testing.assert_close(model(**given).logits, again(**given).logits)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model.train()(**given).loss
    loss.backward()
    grads = [w.grad for name, w in model.named_parameters() if "_filter." in name]
    assert len(grads) == 8
    assert all(grad is not None and bool(grad.any()) for grad in grads)


def test_the_native_core_names_it() -> None:
    assert missing(tiny.seq2seq(**CONV).config) == "transition: separable_conv"
    assert missing(tiny.seq2seq().config) is None


@pytest.mark.parametrize(
    ("make", "changes", "said"),
    [
        (tiny.seq2seq, {"transition": "conv"}, "transition: unknown 'conv'"),
        (tiny.seq2seq, {"transition": "feedforward", "transition_widths": [3, 5]},
         "transition_widths: has no effect with transition: feedforward"),
        (tiny.seq2seq, {"transition_widths": [3]}, "transition_widths: got .3., expected two"),
        (tiny.seq2seq, {"transition_widths": [3, 0]}, "transition_widths: got .* from 1 to 256"),
        (tiny.seq2seq, {"feedforward_chunks": 2}, "feedforward_chunks: cuts texts into chunks"),
        (tiny.seq2seq, {"depth": "shared", "halting": {}},
         "transition: separable_conv needs neighbours, which halting may remove; leave halting"),
        (tiny.seq2seq, {"skip": {"below": 0.1}}, "transition: .* skip may remove; leave skip out"),
        (tiny.language_model, {"memory": 4, "position": "none"}, "transition: .* leave memory out"),
    ],
)  # fmt: skip
def test_unsupported_options_are_refused(make: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(**CONV | changes)
