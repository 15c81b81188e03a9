"""Residuals equal their equations; initial values, segment memory and saved gates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.models import DrafterConfig, LanguageModel
from outrider.torch.models.drafter import Drafter
from outrider.torch.nn.layer.residual import GATE_BIAS, GatedResidual, Residual, build_residual
from outrider.torch.nn.position import Positions
from tests.helpers import tiny

GRU: dict[str, Any] = {"residual": "gru", "gate_bias": 1.0}


def standardise(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    deviation = x - x.mean(-1, keepdim=True)
    spread = (deviation.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return deviation / spread * norm.weight + norm.bias


def logistic(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def gate_equation(residual: GatedResidual, x: Tensor, f: Tensor) -> Tensor:
    """The GRU gate of arXiv:1910.06764 for one token: x and y = relu(f(norm(x))) are [D]."""
    width = len(x)
    w_r, w_z, w_h = residual.from_part.weight.split(width)
    u_r, u_z = residual.from_stream.weight.split(width)
    y = (f @ standardise(x, residual.norm)).clamp(min=0)
    r = logistic(w_r @ y + u_r @ x)
    z = logistic(w_z @ y + u_z @ x - residual.bias_D)
    h = torch.tanh(w_h @ y + residual.from_reset.weight @ (r * x))
    return (1 - z) * x + z * h


@settings(max_examples=20, deadline=None)
@given(width=st.integers(2, 6), tokens=st.integers(1, 4), seed=st.integers(0, 2**16))
def test_gate_matches_its_equation_and_gradient(width: int, tokens: int, seed: int) -> None:
    torch.manual_seed(seed)
    residual = GatedResidual(width, dropout=0.0).double()
    for parameter in residual.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, tokens, width, dtype=torch.float64, requires_grad=True)
    f = torch.randn(width, width, dtype=torch.float64, requires_grad=True)
    fast = residual(x, lambda h: h @ f.T)
    slow = torch.stack([gate_equation(residual, x[0, t], f) for t in range(tokens)])[None]
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    weight, inputs = torch.randn_like(slow), [x, f, *residual.parameters()]
    fast_grads = torch.autograd.grad((fast * weight).sum(), inputs)
    slow_grads = torch.autograd.grad((slow * weight).sum(), inputs)
    torch.testing.assert_close(fast_grads, slow_grads, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_sum_matches_its_equation(norm: str) -> None:
    residual = Residual(5, norm=norm, dropout=0.0).double()
    torch.nn.init.normal_(residual.norm.weight)
    x, f = torch.randn(2, 3, 5).double(), torch.randn(5, 5).double()
    expected = x + standardise(x, residual.norm) @ f
    if norm == "post":
        expected = standardise(x + x @ f, residual.norm)
    torch.testing.assert_close(residual(x, lambda h: h @ f), expected)


def distance_from_identity(width: int, *, cross: bool, **changes: Any) -> float:
    make = tiny.seq2seq if cross else tiny.language_model
    sizes = {"hidden_size": width, "num_attention_heads": 4, "intermediate_size": 4 * width}
    block = make(residual="gru", **sizes, **changes).decoder.blocks[0]
    x = torch.randn(4, 32, width)
    with torch.no_grad():
        source = block.cross.source(torch.randn(4, 9, width), None) if cross else None
        y = block(x, Positions.upto(32, x.device), None, source)
    return float((y - x).norm() / x.norm())


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("width", [32, 256])
def test_a_whole_layer_starts_near_identity(width: int, cross: bool) -> None:
    torch.manual_seed(0)
    assert distance_from_identity(width, cross=cross) < 1e-2
    assert distance_from_identity(width, cross=cross, gate_bias=2.0) > 0.1, "the paper's first bias"


def test_closed_gates_have_a_gradient() -> None:
    model = tiny.language_model(residual="gru").train()
    tokens = torch.randint(4, tiny.VOCABULARY, (2, 6))
    model(input_ids=tokens, labels=tokens).loss.backward()
    for name, parameter in model.decoder.blocks[0].named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_dropout_applies_to_the_output_of_the_part() -> None:
    residual = GatedResidual(64, dropout=0.5).train()
    torch.nn.init.zeros_(residual.from_stream.weight)
    torch.nn.init.zeros_(residual.from_reset.weight)
    residual.from_part.weight.data = torch.eye(64).repeat(3, 1)
    torch.nn.init.zeros_(residual.bias_D)
    x = torch.zeros(1, 1, 64)
    y = residual(x, lambda h: torch.ones_like(h))
    assert 0 < int((y == 0).sum()) < 64


@pytest.mark.parametrize("parts", [{}, {"position": "rotary"}])
def test_segments_of_a_gated_model_equal_one_pass_under_a_local_pattern(
    parts: dict[str, Any],
) -> None:
    segment, memory = 4, 6
    options = {**GRU, "position": "relative", "max_positions": segment, "layers": 3, **parts}
    model = tiny.language_model(dtype=torch.float64, memory=memory, **options)
    local = {"kind": "local", "block": segment, "memory": memory}
    whole = tiny.language_model(dtype=torch.float64, attention=local, **options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    whole.load_state_dict(model.state_dict())
    tokens = torch.randint(4, tiny.VOCABULARY, (2, 14))
    state, logits = model.new_memory(2), []
    for start in range(0, 14, segment):
        out = model(input_ids=tokens[:, start : start + segment], memory=state)
        state = out.memory
        logits.append(out.logits)
    expected = whole(input_ids=tokens).logits
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, rtol=1e-9, atol=1e-9)


def test_gates_are_saved_and_start_with_the_given_bias(tmp_path: Path) -> None:
    model = tiny.language_model(residual="gru", gate_bias=3)
    assert model.decoder.blocks[1].feedforward_residual.bias_D.unique().tolist() == [3.0]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    again = LanguageModel.from_pretrained(tmp_path).eval()
    tokens = torch.randint(4, tiny.VOCABULARY, (2, 6))
    assert torch.equal(again(input_ids=tokens).logits, model(input_ids=tokens).logits)


def test_side_decoders_keep_plain_residuals() -> None:
    target = tiny.language_model(residual="gru")
    drafter = Drafter(DrafterConfig.for_target(target.config))
    assert type(drafter.blocks[0].feedforward_residual) is Residual
    assert type(target.decoder.blocks[0].feedforward_residual) is GatedResidual


def test_reversible_layers_have_plain_residuals() -> None:
    built = build_residual("reversible", 4, norm="pre", dropout=0.0, gate_bias=GATE_BIAS)
    assert type(built) is Residual


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"residual": "grru"}, "residual: unknown 'grru' .did you mean 'gru'.*reversible"),
        ({**GRU, "norm": "post"}, "norm: 'post' does not go with residual: gru; use pre"),
        ({"residual": "reversible", "norm": "post"}, "norm: 'post' does not go.*use pre"),
        ({"gate_bias": 2.0}, "gate_bias: has no effect with residual: add; leave it out"),
        ({**GRU, "gate_bias": 1e3}, "gate_bias: got 1000.0, expected -100 to 100"),
        ({**GRU, "gate_bias": float("nan")}, "gate_bias: got nan, expected -100 to 100"),
        ({"feedforward_chunks": 0}, "feedforward_chunks: got 0, expected 1 to 1024"),
        (
            {"residual": "reversible", "memory": 4, "position": "rotary"},
            "residual: reversible layers have no memory; use add or gru",
        ),
        (
            {
                "residual": "reversible",
                "attention": {"kind": "adaptive_span", "dynamic": True},
            },
            "attention.dynamic: .*reversible layers do not keep; use dynamic: false",
        ),
    ],
)
def test_unsupported_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny.language_model(**changes)
