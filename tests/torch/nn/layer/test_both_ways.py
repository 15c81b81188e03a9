"""Recurrent encoders equal their equations and replace self-attention."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.decoding import DecodeConfig, Request, decode
from outrider.errors import ConfigError
from outrider.torch.backend import TorchBackend
from outrider.torch.models import load_model
from outrider.torch.nn.layer.recurrent import BothWays
from outrider.torch.nn.position import Positions
from tests.helpers import tiny

CORES = ["gru", "lstm"]


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def walk(weights: dict[str, Tensor], x: Tensor, end: str, core: str) -> Tensor:
    """One row in the given order, token by token, gate by gate."""
    w, u = weights[f"weight_ih_l0{end}"], weights[f"weight_hh_l0{end}"]
    b, d = weights[f"bias_ih_l0{end}"], weights[f"bias_hh_l0{end}"]
    h = c = torch.zeros(x.shape[1], dtype=x.dtype)
    out = []
    for token in x:
        given, known = w @ token + b, u @ h + d
        if core == "gru":
            (r, z, n), (r2, z2, n2) = given.chunk(3), known.chunk(3)
            r, z = sigmoid(r + r2), sigmoid(z + z2)
            h = (1 - z) * torch.tanh(n + r * n2) + z * h
        else:
            i, f, g, o = (given + known).chunk(4)
            c = sigmoid(f) * c + sigmoid(i) * torch.tanh(g)
            h = sigmoid(o) * torch.tanh(c)
        out.append(h)
    return torch.stack(out)


def equation(layer: BothWays, x: Tensor, core: str) -> Tensor:
    weights = dict(layer.states.named_parameters())
    forwards = walk(weights, x, "", core)
    backwards = walk(weights, x.flip(0), "_reverse", core).flip(0)
    both = torch.cat([forwards, backwards], 1)
    return both @ layer.out.weight.T + layer.out.bias


@pytest.mark.parametrize("core", CORES)
def test_matches_equation_and_its_gradient(core: str) -> None:
    torch.manual_seed(0)
    layer = BothWays(6, core=core).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = layer(x, Positions.upto(5, x.device), keep)
    wanted = [equation(layer, x[0], core), equation(layer, x[1, :3], core)]
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1, :3], wanted[1])
    direction = [torch.randn_like(one) for one in wanted]
    ours = (found[0] * direction[0]).sum() + (found[1, :3] * direction[1]).sum()
    theirs = sum((one * way).sum() for one, way in zip(wanted, direction, strict=True))
    inputs = [x, *layer.parameters()]
    for mine, yours in zip(
        torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True
    ):
        torch.testing.assert_close(mine, yours)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("parts", [{}, {"decoder_core": "gru"}, {"depth": "shared"}], ids=str)
def test_rows_are_independent(core: str, parts: dict[str, Any]) -> None:
    model = tiny.seq2seq(encoder_core=core, dtype=torch.float64, **parts)
    backend = TorchBackend(model)
    sources = [[5, 6, 7, 8, 9, 1], [7, 1], [9, 9, 3, 1]]
    asked = [
        Request(source=one, prompt=(), start=model.config.decoder_start_token_id,
                max_new_tokens=6, seed=0)
        for one in sources
    ]  # fmt: skip
    together = decode(backend, asked, DecodeConfig())
    for row, request in enumerate(asked):
        (alone,) = decode(backend, [request], DecodeConfig())
        assert alone[0].tokens == together[row][0].tokens
    padded = torch.tensor([[7, 8, 1, 0, 0]])
    keep = torch.tensor([[True, True, True, False, False]])
    torch.testing.assert_close(
        model.encode(padded, keep)[:, :3], model.encode(torch.tensor([[7, 8, 1]]))
    )


@pytest.mark.parametrize("core", CORES)
def test_it_is_saved_and_trained(core: str, tmp_path: Path) -> None:
    model = tiny.seq2seq(encoder_core=core)
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    ids = torch.tensor([[5, 6, 7, 1]])
    torch.testing.assert_close(model.encode(ids), again.encode(ids))
    assert isinstance(again.encoder.blocks[0].attention, BothWays)
    model.train()(input_ids=ids, labels=ids).loss.backward()
    grads = [w.grad for name, w in model.named_parameters() if "encoder" in name]
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"encoder_core": "ssru"}, "encoder_core: unknown 'ssru'"),
        ({"encoder_attention": {"kind": "full"}}, "encoder_attention: has no effect"),
        ({"skip": {"below": 1.0}}, "skip: a gru cannot skip tokens"),
        ({"depth": "shared", "position": "coordinate", "halting": {}}, "encoder_core: a gru reads"),
    ],
)
def test_unsupported_options_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tiny.seq2seq(**{"encoder_core": "gru"} | changes)
