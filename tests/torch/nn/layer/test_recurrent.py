"""Recurrent layers equal their equations and replace self-attention."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.decoding import DecodeConfig, Request, decode
from outrider.decoding.statistics import Statistics
from outrider.errors import ConfigError, InputError
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Drafter, DrafterConfig, LanguageModel, Seq2Seq, load_model
from outrider.torch.nn.cache import SLACK, Step
from outrider.torch.nn.layer.recurrent import Gru, SlotLstm, Ssru
from outrider.torch.nn.position import Positions
from tests.helpers import tiny

CPU = torch.device("cpu")
CORES = ["gru", "ssru"]
KEYS = {"seq2seq": "decoder_core", "language_model": "core"}
MAKERS = {"seq2seq": tiny.seq2seq, "language_model": tiny.language_model}


def build(kind: str, core: str = "gru", **changes: Any) -> Seq2Seq | LanguageModel:
    return MAKERS[kind](**{KEYS[kind]: core} | changes)


def rescaled(model: Seq2Seq | LanguageModel) -> Any:
    """Larger weights: with plain random weights every text repeats one token."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "tokens" not in name:
                weight.mul_(3.0)
    return model


def gru_equation(layer: Gru, x: Tensor) -> Tensor:
    """One row, token by token, gate by gate."""
    w_r, w_z, w_n = layer.gru.weight_ih_l0.chunk(3)
    u_r, u_z, u_n = layer.gru.weight_hh_l0.chunk(3)
    b_r, b_z, b_n = layer.gru.bias_ih_l0.chunk(3)
    c_r, c_z, c_n = layer.gru.bias_hh_l0.chunk(3)
    h, out = torch.zeros(x.shape[1], dtype=x.dtype), []
    for token in x:
        r = 1 / (1 + torch.exp(-(w_r @ token + b_r + u_r @ h + c_r)))
        z = 1 / (1 + torch.exp(-(w_z @ token + b_z + u_z @ h + c_z)))
        n = torch.tanh(w_n @ token + b_n + r * (u_n @ h + c_n))
        h = (1 - z) * n + z * h
        out.append(layer.out.weight @ h + layer.out.bias)
    return torch.stack(out)


def ssru_equation(layer: Ssru, x: Tensor) -> Tensor:
    """One row, token by token, element by element."""
    width = x.shape[1]
    w, w_f = layer.into.weight[:width], layer.into.weight[width:]
    b, b_f = layer.into.bias[:width], layer.into.bias[width:]
    c, out = torch.zeros(width, dtype=x.dtype), []
    for token in x:
        f = 1 / (1 + torch.exp(-(w_f @ token + b_f)))
        c = f * c + (1 - f) * (w @ token + b)
        out.append(torch.where(c > 0, c, 0.0))
    return torch.stack(out)


LAYERS = {"gru": (Gru, gru_equation), "ssru": (Ssru, ssru_equation)}


def lstm_equation(layer: SlotLstm, x: Tensor, first: Tensor) -> Tensor:
    """One block, slot by slot, gate by gate."""
    w, u = layer.lstm.weight_ih_l0, layer.lstm.weight_hh_l0
    bias = layer.lstm.bias_ih_l0 + layer.lstm.bias_hh_l0
    c, h, out = first, torch.tanh(first), []
    for slot in x:
        i, f, g, o = (w @ slot + u @ h + bias).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        out.append(layer.out.weight @ h + layer.out.bias)
    return torch.stack(out)


def same_with_gradient(fast: Tensor, slow: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(fast, slow)
    weight = torch.randn_like(slow)
    ours = torch.autograd.grad((fast * weight).sum(), inputs)
    torch.testing.assert_close(ours, torch.autograd.grad((slow * weight).sum(), inputs))


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=15)
@given(tokens=st.integers(1, 7), width=st.integers(1, 6), seed=st.integers(0, 999))
def test_a_layer_equals_its_equation(core: str, tokens: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    kind, equation = LAYERS[core]
    layer = kind(width).double()
    x = torch.randn(2, tokens, width, dtype=torch.float64, requires_grad=True)
    whole = layer(x, Positions.upto(tokens, CPU))
    slow = torch.stack([equation(layer, row) for row in x])
    same_with_gradient(whole, slow, [x, *layer.parameters()])


@settings(max_examples=15)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.integers(0, 999))
def test_lstm_equals_its_equation_and_blocks_are_independent(sizes: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    layer, width = SlotLstm(5).double(), 5
    x = torch.randn(2, sum(sizes), width, dtype=torch.float64, requires_grad=True)
    first = torch.randn(2, len(sizes), width, dtype=torch.float64, requires_grad=True)
    spread = first.repeat_interleave(torch.tensor(sizes), dim=1)
    found = layer.run_blocks(x, spread, sizes)
    blocks = x.split(sizes, dim=1)
    slow = torch.stack(
        [
            torch.cat(
                [
                    lstm_equation(layer, block[row], start)
                    for block, start in zip(blocks, first[row], strict=True)
                ]
            )
            for row in range(2)
        ]
    )
    same_with_gradient(found, slow, [x, first, *layer.parameters()])


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=20)
@given(data=st.data(), prompt=st.sampled_from([1, 30, 150]))
@torch.no_grad()
def test_partly_rolled_back_blocks_equal_one_pass(
    core: str, data: st.DataObject, prompt: int
) -> None:
    rows, total, width = 3, prompt + 100, 4
    layer = LAYERS[core][0](width).double()
    x = torch.randn(rows, total, width, dtype=torch.float64)
    whole = layer(x, Positions.upto(total, CPU))
    cache = layer.new_cache(rows, total + SLACK)
    lengths, block = [0] * rows, prompt
    for _ in range(6):
        first = not any(lengths)
        kept = [data.draw(st.integers(1 if first else 0, block)) for _ in range(rows)]
        step = Step(lengths, block, kept if first else [block] * rows, CPU)
        given_now = torch.randn(rows, block, width, dtype=torch.float64)  # rejected tokens
        for row, (n, more) in enumerate(zip(lengths, kept, strict=True)):
            given_now[row, :more] = x[row, n : n + more]
        out = layer.extend(given_now, cache, step)
        for row, (n, more) in enumerate(zip(lengths, kept, strict=True)):
            torch.testing.assert_close(out[row, :more], whole[row, n : n + more])
        lengths = [n + more for n, more in zip(lengths, kept, strict=True)]
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(rows)))
            cache.select(torch.tensor(order), max(lengths))
            x, whole, lengths = x[order], whole[order], [lengths[row] for row in order]
        block = data.draw(st.integers(1, 14))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("changes", [{}, {"norm": "post"}, {"depth": "shared"}], ids=str)
@torch.no_grad()
def test_steps_equal_teacher_forcing_and_rows_are_independent(
    core: str, changes: dict[str, Any]
) -> None:
    model = build("seq2seq", core, dtype=torch.float64, **changes)
    assert isinstance(model, Seq2Seq)
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


@pytest.mark.parametrize("core", CORES)
@torch.no_grad()
def test_beams_are_repeated_and_selected(core: str) -> None:
    model = build("seq2seq", core, dtype=torch.float64)
    assert isinstance(model, Seq2Seq)
    source, target = torch.randint(4, 23, (2, 5)), torch.randint(4, 23, (6, 4))
    whole = model(input_ids=source.repeat_interleave(3, 0), decoder_input_ids=target).logits
    state = model.open(model.encode(source), None, capacity=9).repeat_rows(3)
    torch.testing.assert_close(model.extend(target[:, :2], state), whole[:, :2])
    rows = torch.tensor([4, 3, 3])
    state.select(rows)
    torch.testing.assert_close(model.extend(target[rows, 2:], state), whole[rows, 2:])


@pytest.mark.parametrize("core", CORES)
@torch.no_grad()
def test_prompts_of_different_length(core: str) -> None:
    model = build("language_model", core, dtype=torch.float64)
    tokens = torch.randint(4, tiny.VOCABULARY, (3, 120))
    whole, counts = model(input_ids=tokens).logits, torch.tensor([100, 1, 37])
    state = model.open(3, capacity=120)  # type: ignore[call-arg,arg-type]
    last = model.extend(tokens[:, :100], state, count_B=counts, last=True)
    torch.testing.assert_close(last[:, 0], whole[torch.arange(3), counts - 1])
    at = counts[:, None] + torch.arange(3)
    found = model.extend(tokens.gather(1, at), state)
    torch.testing.assert_close(found, whole.gather(1, at[..., None].expand(-1, -1, 23)))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("kind", MAKERS)
def test_tandem_equals_greedy(core: str, kind: str) -> None:
    model = rescaled(build(kind, core, seed={"gru": 3, "ssru": 7}[core]))
    torch.manual_seed(0)
    drafter = Drafter(DrafterConfig.for_target(model.config, block=6, train_block=4, rank=6))
    backend = TorchBackend(model, drafter=drafter)
    sources = [[4, 5, 6, 1], [7, 1], [8, 9, 9, 9, 9, 1]] if kind == "seq2seq" else [[]] * 3
    rows = [
        Request(source=source, prompt=prompt if kind == "language_model" else [], max_new_tokens=80)
        for source, prompt in zip(sources, [[5, 6], [7], [8, 9, 10]], strict=True)
    ]
    plain = decode(backend, rows, DecodeConfig(suppress=(0, 1)))
    stats = Statistics()
    config = DecodeConfig(mode="tandem", draft_tokens=4, suppress=(0, 1))
    drafted = decode(backend, rows, config, stats=stats)
    assert [one[0].tokens for one in drafted] == [one[0].tokens for one in plain]
    assert all(len(one[0].tokens) == 80 for one in plain)
    assert len(set(plain[0][0].tokens)) > 2, "a text that says something"


@pytest.mark.parametrize("core", CORES)
def test_the_state_does_not_grow_with_the_text(core: str) -> None:
    model = build("language_model", core)
    assert isinstance(model, LanguageModel)
    long = model.open(2, capacity=65_536).nbytes
    assert long == model.open(2, capacity=1_000).nbytes == 2 * 2 * (SLACK + 1) * 16 * 4


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("kind", MAKERS)
def test_saved_and_loaded(core: str, kind: str, tmp_path: Path) -> None:
    model = build(kind, core)
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    ids = torch.randint(4, 23, (2, 5))
    given = {"input_ids": ids} | ({"decoder_input_ids": ids} if kind == "seq2seq" else {})
    torch.testing.assert_close(loaded(**given).logits, model(**given).logits)


@pytest.mark.parametrize("core", CORES)
def test_it_trains_under_autocast(core: str) -> None:
    model, ids = build("language_model", core).train(), torch.randint(4, 23, (2, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    plain = model.eval()(input_ids=ids, labels=ids).loss
    torch.testing.assert_close(loss, plain, rtol=0.05, atol=0)
    grads = [one.grad for name, one in model.named_parameters() if ".blocks.0.attention." in name]
    assert all(grad is not None and bool(grad.any()) for grad in grads)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    ("kind", "changes", "key"),
    [
        ("seq2seq", {"decoder_attention": {"kind": "causal"}}, "decoder_attention"),
        ("seq2seq", {"decoder_core": "grue"}, "decoder_core"),
        ("language_model", {"attention": {"kind": "sliding", "window": 3}}, "attention"),
        ("language_model", {"position": "rotary"}, "position"),
        ("language_model", {"memory": 4, "position": "none"}, "memory"),
        ("language_model", {"position_correlation": 3}, "position_correlation"),
        ("language_model", {"attention_dropout": 0.1}, "attention_dropout"),
        ("language_model", {"num_key_value_heads": 1}, "num_key_value_heads"),
    ],
)
def test_attention_options_are_refused(core: str, kind: str, changes: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}:"):
        build(kind, **{KEYS[kind]: core} | changes)


def test_the_encoder_keeps_its_attention() -> None:
    model = build("seq2seq", encoder_attention={"kind": "sliding", "window": 2}, position="rotary")
    assert isinstance(model, Seq2Seq)
    assert model.config.decoder_attention is None
    assert model.encoder.blocks[0].attention.attention.kind == "sliding"


def test_segment_memory_is_refused() -> None:
    model = build("language_model")
    assert isinstance(model, LanguageModel)
    with pytest.raises(InputError, match="no memory"):
        model.new_memory(1)
