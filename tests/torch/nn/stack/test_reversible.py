"""Reversible layers: equation under plain autograd, saved tensors, and decoding."""

import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outrider.torch.models import LanguageModel, Seq2Seq
from outrider.torch.nn.dropout import dropout
from outrider.torch.nn.layer.heads import Source
from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack import Stack, reversible
from outrider.torch.nn.stack.reversible import ReversibleStack
from tests.helpers import tiny

ROOT = Path(__file__).resolve().parents[4]
DROPOUTS = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.3}
LSH = {"kind": "lsh", **tiny.SMALL["lsh"], "redraw": True}


def equation(
    stack: Stack,
    x: Tensor,
    positions: Positions,
    keep: Tensor | None = None,
    sources: Sequence[Source | None] | None = None,
    seen: list[Tensor] | None = None,
) -> Tensor:
    """Two streams; each part reads one and adds to the other; plain autograd saves everything."""
    rate, training = stack.blocks[0].attention_residual.dropout, stack.training
    one, other = x, x
    for layer, block in enumerate(stack.blocks):
        if stack.coordinate is not None and layer > 0:
            one = stack.coordinate(one, positions, layer)
            other = stack.coordinate(other, positions, layer)
        normed = block.attention_residual.norm(other)
        one = one + dropout(block.attention(normed, positions, keep), rate, training)
        one, other = other, one
        if block.cross is not None and block.cross_residual is not None and sources is not None:
            source = sources[layer]
            assert source is not None
            added = block.cross(block.cross_residual.norm(other), source)
            one, other = other, one + dropout(added, rate, training)
        added = block.feedforward(block.feedforward_residual.norm(other))
        one, other = other, one + dropout(added, rate, training)
        if seen is not None:
            seen.append(0.5 * (one + other))
    assert stack.norm is not None
    return stack.norm(0.5 * (one + other))


def language_model(**changes: Any) -> LanguageModel:
    options = {"residual": "reversible", "dtype": torch.float64, "layers": 3} | DROPOUTS
    return shaken(tiny.language_model(**options | changes))


def seq2seq(**changes: Any) -> Seq2Seq:
    options = {"residual": "reversible", "dtype": torch.float64} | DROPOUTS
    return shaken(tiny.seq2seq(**options | changes))


def shaken(model: Any) -> Any:
    for name, parameter in model.named_parameters():  # zero biases would hide errors
        if "span" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.train()


def train(run: Callable[[], Tensor], model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the result of a pass from a seed, its gradients, and the next random number."""
    model.zero_grad()
    torch.manual_seed(3)
    loss = run()
    loss.backward()
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {**found, "loss": loss.detach(), "next random number": torch.rand(1)}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, one in found.items():
        torch.testing.assert_close(
            one, expected[name], rtol=1e-10, atol=1e-10, msg=lambda text, name=name: name + text
        )


def check(model: Any, run: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    found = train(run, model)
    monkeypatch.setattr(ReversibleStack, "forward", equation)
    same(found, train(run, model))


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position": "coordinate"},
        {"position": "relative", "num_key_value_heads": 1},
        {"attention": LSH, "attention_dropout": 0.0},
        {"feedforward_chunks": 3},
        {"layers": 1},
        {"core": "gru", "attention_dropout": 0.0},
    ],
    ids=str,
)
def test_a_language_model_has_the_gradients_of_plain_autograd(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = language_model(**changes), torch.randint(4, tiny.VOCABULARY, (2, 30))
    check(model, lambda: model(input_ids=tokens, labels=tokens).loss, monkeypatch)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    "changes",
    [{}, {"encoder_attention": LSH, "decoder_attention": LSH, "attention_dropout": 0.0}],
    ids=["full", "lsh"],
)
def test_encoder_and_decoder_have_the_gradients_of_plain_autograd(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = seq2seq(**changes)
    source, target = (torch.randint(4, tiny.VOCABULARY, (3, n)) for n in (26, 9))
    mask = (torch.arange(26) < torch.tensor([26, 20, 5])[:, None]).long()
    check(
        model,
        lambda: model(input_ids=source, attention_mask=mask, labels=target).loss,
        monkeypatch,
    )


def test_layer_outputs_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = language_model(position="coordinate"), torch.randint(4, 20, (2, 7))

    def run() -> Tensor:
        seen: list[Tensor] = []
        hidden = model.hidden(tokens, seen)
        assert len(seen) == 3
        parts = [*seen[:2], hidden]  # `hidden` is already the mean of the last layer
        weights = [torch.linspace(-n, 1, hidden.numel()).view_as(hidden) for n in (1, 2, 3)]
        return torch.stack([(w * x).sum() for w, x in zip(weights, parts, strict=True)]).sum()

    check(model, run, monkeypatch)


def test_a_layer_that_is_applied_twice_gets_the_sum() -> None:
    model = language_model(layers=2)
    first, norm = model.decoder.blocks[0], model.decoder.norm
    stack = ReversibleStack([first, first], norm=nn.LayerNorm(16)).double().train()
    stack.norm = norm
    x = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    positions = Positions.upto(5, x.device)
    found, expected = [], []
    for run, grads in ((stack, found), (lambda *given: equation(stack, *given), expected)):
        torch.manual_seed(0)
        loss = run(x, positions).square().sum()
        grads.extend(torch.autograd.grad(loss, [x, *first.parameters()]))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_frozen_weights_get_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = language_model(), torch.randint(4, tiny.VOCABULARY, (2, 7))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("blocks.1.feedforward" in name)
    check(model, lambda: model(input_ids=tokens, labels=tokens).loss, monkeypatch)
    assert model.decoder.blocks[0].attention.out.weight.grad is None
    assert model.decoder.blocks[1].feedforward.up.weight.grad is not None


def test_the_penalty_of_spans_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"kind": "adaptive_span", **tiny.SMALL["adaptive_span"], "penalty": 0.5}
    model, tokens = language_model(attention=spec), torch.randint(4, tiny.VOCABULARY, (2, 9))
    for name, parameter in model.named_parameters():
        if "span_bias" in name:
            torch.nn.init.constant_(parameter, 0.3)

    def run() -> Tensor:
        loss = model(input_ids=tokens, labels=tokens).loss
        penalty = model.penalty()
        assert penalty is not None
        return loss + penalty

    check(model, run, monkeypatch)


@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
def test_autocast_is_the_same_in_the_backward(inside: bool) -> None:
    model = language_model(dtype=torch.float32)
    tokens, dtypes = torch.randint(4, tiny.VOCABULARY, (2, 9)), []
    for block in model.decoder.blocks:
        block.feedforward.up.register_forward_hook(lambda _, args, out: dtypes.append(out.dtype))
    grads = []
    for forward in (ReversibleStack.forward, equation):
        model.zero_grad()
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = forward_loss(model, tokens, forward)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        grads.append(torch.cat([one.grad.flatten() for one in model.decoder.parameters()]))
    assert dtypes == [torch.bfloat16] * 9, "3 layers: forward, again, and plain"
    assert (grads[0] - grads[1]).norm() < 0.02 * grads[1].norm()


def forward_loss(model: LanguageModel, tokens: Tensor, forward: Callable[..., Tensor]) -> Tensor:
    positions = Positions.upto(tokens.shape[1], tokens.device)
    x = model.embed(model.tokens, model.decoder_position, tokens, positions)
    return forward(model.decoder, x, positions).float().square().mean()


class Kept:
    """A tensor that autograd saves."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_saved_tensors_do_not_grow_with_depth() -> None:
    def kept(layers: int) -> int:
        model, tokens = language_model(layers=layers), torch.full((2, 50), 5)
        weights = {one.data_ptr() for one in model.parameters()}
        alive: weakref.WeakSet[Kept] = weakref.WeakSet()

        def pack(tensor: Tensor) -> Kept:
            alive.add(one := Kept(tensor.detach()))
            return one

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
            loss = model(input_ids=tokens, labels=tokens).loss
        storages = {one.tensor.untyped_storage() for one in alive}
        sizes = {one.data_ptr(): one.nbytes() for one in storages}
        assert loss.requires_grad, "still here, and with it what its backward needs"
        return sum(size for address, size in sizes.items() if address not in weights)

    assert kept(2) == kept(7)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position": "coordinate"},
        {"position": "relative"},
        {"decoder_attention": {"kind": "sliding", "window": 3}},
        {"num_attention_heads": 4, "decoder_attention": LSH},
        {"decoder_core": "gru"},
    ],
    ids=str,
)
@torch.no_grad()
def test_cached_decoding_equals_the_whole_pass(changes: dict[str, Any]) -> None:
    model = seq2seq(**changes).eval()
    source, target = (torch.randint(4, tiny.VOCABULARY, (3, n)) for n in (6, 9))
    keep = torch.arange(6) < torch.tensor([6, 4, 2])[:, None]
    memory, whole = model.encode(source, keep), []
    hidden = model.decode(target, memory, keep, whole)
    state = model.open(memory, keep, capacity=9)
    steps, stepped = [], []
    for start, end in ((0, 4), (4, 5), (5, 9)):
        seen: list[Tensor] = []
        step = state.step(end - start, [end - start] * 3)
        x = model.embed(model.tokens, model.decoder_position, target[:, start:end], step.positions)
        steps.append(model.decoder.extend(x, state.caches, step, state.sources, seen))
        state.advance([end - start] * 3)
        stepped.append(seen)
    torch.testing.assert_close(torch.cat(steps, dim=1), hidden, rtol=1e-10, atol=1e-10)
    for layer, wanted in enumerate(whole):
        found = torch.cat([seen[layer] for seen in stepped], dim=1)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_the_compiler_gets_plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = language_model(), torch.randint(4, tiny.VOCABULARY, (2, 7))
    expected = train(lambda: model(input_ids=tokens, labels=tokens).loss, model)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(reversible, "_Reversible", None)
    same(train(lambda: model(input_ids=tokens, labels=tokens).loss, model), expected)


@pytest.mark.slow
def test_peak_memory_is_constant_in_depth_and_lower_in_chunks(tmp_path: Path) -> None:
    """Measured by the committed script, every point in a separate process."""
    file = tmp_path / "reversible.json"
    script = ROOT / "lab/studies" / "reversible.py"
    line = [sys.executable, str(script), "--quick", "--threads", "1", "--json", str(file)]
    subprocess.run(line, check=True)
    result = json.loads(file.read_text(encoding="utf-8"))
    peak = {(one["way"], one["layers"]): one["peak_bytes"] for one in result["points"]}
    assert abs(peak["reversible", 32] / peak["reversible", 2] - 1) < 0.1
    assert peak["plain", 32] > 10 * peak["plain", 2]
    growth = result["bytes_per_layer"]
    assert abs(growth["reversible"]) < 0.01 * growth["plain"]
    whole, cut = result["feedforward"]
    assert cut["peak_bytes"] < 0.5 * whole["peak_bytes"]
