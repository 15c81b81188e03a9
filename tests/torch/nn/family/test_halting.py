"""Adaptive computation time: equations token by token, packing, padding, caches, cost."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.decoding import DecodeConfig, Request
from outrider.errors import ConfigError
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Drafter, DrafterConfig, LanguageModel, Seq2Seq, load_model
from outrider.torch.nn.family.halting import HaltingStack
from outrider.torch.nn.position import Positions
from tests.helpers import tiny
from tests.helpers.loops import greedy, tandem
from tests.helpers.plain_layer import coordinates, layer, normed

STEPS, THRESHOLD, PONDER = 5, 0.9, 0.2
HALTING = {"threshold": THRESHOLD, "ponder": PONDER}
SLIDING = {"kind": "sliding", "window": 3}
PARTS = [
    {"position": "coordinate"},
    {"position": "coordinate", "norm": "post", "encoder_attention": SLIDING},
    {"position": "rotary", "num_key_value_heads": 1, "decoder_attention": SLIDING},
    {"position": "relative", "decoder_attention": {"kind": "causal", "head_gate": "glu"}},
    {"position": "alibi", "residual": "gru", "gate_bias": 0.0},
]


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def scatter_weights(model: Seq2Seq, seed: int) -> None:
    """Make tokens differ in their number of steps."""
    dice = torch.Generator(model.device).manual_seed(seed)
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=dice)
        if name.endswith("norm.weight"):
            torch.nn.init.normal_(weight, mean=1.0, std=0.1, generator=dice)
    for stack in (model.encoder, model.decoder):
        x, memory = torch.randn(2, 4, 8, model.config.hidden_size, generator=dice).to(model.dtype)
        seen: list[Tensor] = []
        stack(x, Positions.upto(8, x.device), None, stack.sources(memory, None) or None, seen)
        unit, states = stack.halting, torch.stack(seen)
        unit.weight_D *= 1.5 / (states @ unit.weight_D).std()
        unit.bias.fill_(-0.8 - (states @ unit.weight_D).mean())


def build(seed: int = 0, dtype: torch.dtype = torch.float64, **parts: Any) -> Seq2Seq:
    sizes = {"encoder_layers": STEPS, "decoder_layers": STEPS}
    options = {"depth": "shared", "halting": HALTING, **sizes, **parts}
    model = tiny.seq2seq(seed=seed, dtype=dtype, **options)
    with torch.no_grad():
        scatter_weights(model, seed)
    return model


def read(rows: list[int]) -> tuple[Tensor, Tensor]:
    keep = torch.arange(max(rows)) < torch.tensor(rows)[:, None]
    return torch.randint(4, tiny.VOCABULARY, keep.shape) * keep, keep


def equation(
    stack: HaltingStack, x_TD: Tensor, keep_TT: Tensor, memory_SD: Tensor | None
) -> tuple[Tensor, list[int], list[Tensor]]:
    """One row, token by token: output, N and R."""
    length, width = x_TD.shape
    unit, threshold = stack.halting, stack.halting.config.threshold
    state, told = list(x_TD), list(x_TD)
    total = [torch.zeros((), dtype=x_TD.dtype) for _ in range(length)]
    steps = [0] * length
    given, rest = [torch.zeros_like(row) for row in x_TD], list(total)
    for step in range(1, STEPS + 1):
        # Only tokens changed in the previous step get position encodings again.
        moved = [i for i in range(length) if steps[i] in (0, step - 1)]
        if step > 1:
            code = coordinates(length, width, step)
            told = [state[i] + code[i] if i in moved else told[i] for i in range(length)]
        active = [i for i in range(length) if not steps[i]]
        if not active:
            break
        out = layer(stack.blocks[0], torch.stack(told), active, keep_TT, memory_SD)
        for i, row in zip(active, out, strict=True):
            state[i] = row
            p = torch.sigmoid(unit.weight_D @ row + unit.bias)
            if bool(total[i] + p >= threshold) or step == STEPS:
                steps[i], rest[i] = step, 1 - total[i]
                given[i] = given[i] + rest[i] * row
            else:
                given[i] = given[i] + p * row
                total[i] = total[i] + p
    y_TD = torch.stack(given)
    return (y_TD if stack.norm is None else normed(stack.norm, y_TD)), steps, rest


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("side", ["full", "causal", "sliding"])
def test_equals_the_equations_and_their_gradient(norm: str, side: str) -> None:
    own = {"encoder_attention": SLIDING} if side == "sliding" else {}
    model = build(position="coordinate", norm=norm, **own).train()
    stack = model.decoder if side == "causal" else model.encoder
    rows = [6, 4]
    x_BTD = torch.randn(2, 6, 16, dtype=torch.float64, requires_grad=True)
    memory_BSD = torch.randn(2, 5, 16, dtype=torch.float64)
    keep_BT = torch.arange(6) < torch.tensor(rows)[:, None]
    sources = stack.sources(memory_BSD, None) if side == "causal" else None
    y_BTD = stack(x_BTD, Positions.upto(6, x_BTD.device), keep_BT, sources)
    attention = stack.blocks[0].attention.attention
    at = torch.arange(6)
    found, wanted, ponder = [], [], []
    for row, length in enumerate(rows):
        keep_TT = attention.sees(at[:length, None], at[:length])
        memory_SD = memory_BSD[row] if side == "causal" else None
        y_TD, steps, rest = equation(stack, x_BTD[row, :length], keep_TT, memory_SD)
        close(y_BTD[row, :length], y_TD)
        assert stack.pondered.steps_BT[row, :length].tolist() == steps
        assert not stack.pondered.steps_BT[row, length:].any()
        close(stack.pondered.remainder_BT[row, :length], torch.stack(rest))
        found, wanted = [*found, y_BTD[row, :length]], [*wanted, y_TD]
        ponder += [n + r for n, r in zip(steps, rest, strict=True)]
    assert len(set(stack.pondered.steps_BT.flatten().tolist())) > 3, "all think equally long"
    cost = stack.penalty()
    close(cost, PONDER * sum(ponder) / len(ponder))
    losses = [
        (torch.cat(y) * torch.randn(10, 16, generator=torch.manual_seed(1))).sum() + add
        for y, add in ((found, cost), (wanted, PONDER * sum(ponder) / len(ponder)))
    ]
    weights = [x_BTD, *(w for n, w in stack.named_parameters() if ".cross.kv" not in n)]
    one, other = (torch.autograd.grad(loss, weights, allow_unused=True) for loss in losses)
    close(one, other)


def masked(model: Seq2Seq) -> list[Any]:
    """Add hooks, which make a stack compute all tokens and discard halted ones."""
    hooks = []
    for stack in (model.encoder, model.decoder):
        attention = stack.blocks[0].attention.attention
        hooks.append(attention.register_forward_pre_hook(lambda *_: None))
    return hooks


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_packing_equals_masking(parts: dict[str, Any]) -> None:
    model = build(**parts)
    source, keep = read([9, 4, 7])
    inputs = {"input_ids": source, "attention_mask": keep.long()}
    inputs["labels"] = torch.randint(4, tiny.VOCABULARY, (3, 8))
    inputs["labels"][1, 3:] = -100
    results = []
    for packed in (True, False):
        hooks = [] if packed else masked(model)
        model.train()
        out = model(**inputs)
        (out.loss + model.penalty()).backward()
        gradients = [w.grad.clone() for w in model.parameters()]
        model.zero_grad()
        with torch.no_grad():
            memory = model.eval().encode(source, keep)[keep]
        results.append((memory, out.loss.detach(), gradients))
        for hook in hooks:
            hook.remove()
    close(*results, tolerance=1e-12)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("parts", PARTS, ids=str)
@torch.no_grad()
def test_a_row_alone_equals_the_row_in_a_batch(parts: dict[str, Any]) -> None:
    model = build(**parts)
    rows = [5, 2, 7]
    source, keep = read(rows)
    target = torch.randint(4, tiny.VOCABULARY, (3, 6))
    together = model(input_ids=source, attention_mask=keep, decoder_input_ids=target).logits
    steps = model.encoder.pondered.steps_BT
    for row, length in enumerate(rows):
        alone = model(input_ids=source[row : row + 1, :length], decoder_input_ids=target[[row]])
        close(together[[row]], alone.logits)
        assert torch.equal(model.encoder.pondered.steps_BT[0], steps[row, :length])
        assert not steps[row, length:].any()


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("parts", PARTS, ids=str)
@settings(max_examples=6)
@given(data=st.data(), seed=st.integers(0, 99))
@torch.no_grad()
def test_blocks_and_rollbacks_equal_the_whole_pass(
    data: st.DataObject, parts: dict[str, Any], seed: int
) -> None:
    model = build(seed, **parts)
    source, keep = read([3, 5])
    target = torch.randint(4, tiny.VOCABULARY, (2, 90))
    whole = model(input_ids=source, attention_mask=keep, decoder_input_ids=target).logits
    state = model.open(model.encode(source, keep), keep, capacity=90)
    model.extend(target[:, :68], state)  # a window of 3 wraps
    for _ in range(4):
        lengths = state.length_B
        block = data.draw(st.integers(1, 5))
        at = lengths[:, None] + torch.arange(block)
        logits = model.extend(target.gather(1, at), state)
        close(logits, torch.stack([whole[row, at[row]] for row in range(2)]))
        kept = [data.draw(st.integers(0, block)) for _ in range(2)]
        state.rollback(lengths + torch.tensor(kept))
    state.select(torch.tensor([1, 0, 1]))
    at = state.length_B[:, None] + torch.arange(2)
    logits = model.extend(target[[1, 0, 1]].gather(1, at), state)
    close(logits, torch.stack([whole[row, at[n]] for n, row in enumerate([1, 0, 1])]))


@settings(max_examples=8)
@given(seed=st.integers(0, 999), rows=st.integers(1, 4), k=st.integers(1, 8))
def test_tandem_equals_greedy(seed: int, rows: int, k: int) -> None:
    model = build(seed, dtype=torch.float32, position="coordinate")
    config = DrafterConfig.for_target(model.config, rank=4, candidates=5, block=8, dropout=0.0)
    assert config.taps == [2, 4]  # recurrence steps of the target
    backend: Any = TorchBackend(model, drafter=Drafter(config))
    dice = torch.Generator(model.device).manual_seed(seed)
    requests = [
        Request(source=[*torch.randint(4, 23, (n + 2,), generator=dice).tolist(), 1])
        for n in range(rows)
    ]
    config = {"max_new_tokens": 12, "suppress": [0]}
    expected = greedy(backend, requests, DecodeConfig(**config))
    found = tandem(backend, requests, DecodeConfig(mode="tandem", draft_tokens=k, **config))
    assert found == expected


def test_halted_tokens_are_not_computed() -> None:
    """Each step computes as many tokens as the longest active row has; no extra step runs."""
    model = build(position="coordinate")
    rows: list[int] = []
    forward = model.encoder.blocks[0].feedforward
    forward.register_forward_pre_hook(lambda _, x: rows.append(x[0].shape[1]))
    source, keep = read([9, 4, 7])
    model.encode(source, keep)
    steps = model.encoder.pondered.steps_BT
    wanted = [int((steps >= step).sum(1).max()) for step in range(1, STEPS + 1)]
    assert rows == [n for n in wanted if n]
    assert rows[-1] < 9
    rows.clear()
    with torch.no_grad():
        model.encoder.halting.bias.fill_(20.0)
    model.encode(source, keep)
    assert rows == [9], "all halt after one step"


def test_hooks_receive_every_token_in_order() -> None:
    model = build(position="coordinate")
    shapes: list[torch.Size] = []
    stack = model.encoder
    attention = stack.blocks[0].attention.attention
    hook = attention.register_forward_pre_hook(lambda _, x: shapes.append(x[0].shape))
    source, _ = read([6])
    heard = model.encode(source)
    assert shapes == [torch.Size([1, 2, 6, 8])] * int(stack.pondered.steps_BT.max())
    hook.remove()
    close(model.encode(source), heard)


def test_the_cost_counts_once_and_in_training_only() -> None:
    model = build(position="coordinate")
    source, keep = read([5, 2])
    inputs = {"input_ids": source, "attention_mask": keep.long(), "labels": source}
    model(**inputs)
    assert model.penalty() is None
    model.train()(**inputs)
    both = [PONDER * stack.pondered.cost() for stack in (model.encoder, model.decoder)]
    cost = model.penalty()
    close(cost, both[0] + both[1])
    assert model.penalty() is None
    cost.backward()
    assert model.encoder.halting.weight_D.grad.abs().max() > 0


def test_padding_of_a_target_costs_nothing() -> None:
    model = build(position="coordinate").train()
    source, _ = read([5, 5])
    labels = torch.randint(4, tiny.VOCABULARY, (2, 6))
    labels[1, 2:] = -100
    model(input_ids=source, labels=labels)
    steps = model.decoder.pondered.steps_BT
    assert bool((steps[0] > 0).all())
    # The first label is predicted from the start token; the last label is not an input.
    assert (steps[1] > 0).tolist() == [True, True, True, False, False, False]


def test_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    model = tiny.seq2seq(depth="shared", halting={"bias": 0.25}, position="coordinate")
    assert model.encoder.halting.bias.item() == 0.25
    assert model.encoder.halting.weight_D.abs().max() > 0
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path).eval()
    source, _ = read([6])
    assert torch.equal(again.encode(source), model.encode(source))
    assert again.config.halting_config.bias == 0.25


def test_trains_in_mixed_precision() -> None:
    model: LanguageModel = tiny.language_model(
        depth="shared", halting={}, layers=4, position="coordinate"
    ).train()
    tokens = torch.randint(4, tiny.VOCABULARY, (2, 20))
    exact = model(input_ids=tokens, labels=tokens).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss + model.penalty()
    torch.testing.assert_close(loss, exact, rtol=0.1, atol=0.1)
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": "stacked"}, "halting: has no effect with depth: stacked"),
        ({"halting": {"treshold": 0.5}}, r"halting\.treshold: unknown key.*threshold"),
        ({"halting": {"threshold": 0}}, r"halting\.threshold: got 0, expected greater than 0"),
        (
            {"attention": {"kind": "lsh", **tiny.SMALL["lsh"]}},
            r"attention\.kind: 'lsh' cannot leave tokens out; with halting use causal, full",
        ),
        (
            {"attention": {"kind": "causal", "score": "slow"}},
            r"attention\.score: halting needs scaled_dot",
        ),
        ({"position_correlation": 3}, "position_correlation: needs a token's neighbours"),
        ({"core": "gru"}, "core: a gru reads every token"),
    ],
    ids=str,
)
def test_unsupported_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny.language_model(**{"depth": "shared", "halting": {}} | changes)
