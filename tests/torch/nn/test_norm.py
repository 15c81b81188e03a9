"""Norms equal their equations, everywhere in a layer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from outrider.torch.nn.norm import NormKind
from tests.helpers import tiny
from tests.helpers.attention_equation import assert_same_with_gradient
from tests.helpers.plain_layer import normed


def rms(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    total = sum(x[..., k] * x[..., k] for k in range(x.shape[-1]))
    assert norm.eps is not None
    root = (total / x.shape[-1] + norm.eps).sqrt()
    return torch.stack([x[..., k] / root * norm.weight[k] for k in range(x.shape[-1])], dim=-1)


@given(
    width=st.integers(1, 9), rms_norm=st.booleans(), eps=st.floats(1e-6, 0.5), seed=st.integers(0)
)
def test_norm_equation(width: int, rms_norm: bool, eps: float, seed: int) -> None:
    dice = torch.Generator().manual_seed(seed % (1 << 62))
    norm = NormKind(rms_norm, eps).build(width).double()
    with torch.no_grad():
        for weight in norm.parameters():
            weight.copy_(torch.randn(width, generator=dice, dtype=torch.float64))
    x = torch.randn(2, 3, width, generator=dice, dtype=torch.float64, requires_grad=True)
    slow = rms(norm, x) if isinstance(norm, nn.RMSNorm) else normed(norm, x)
    assert_same_with_gradient(norm(x), slow, (x, *norm.parameters()))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_model_uses_the_norm_of_its_config(norm: str) -> None:
    options = {"rms_norm": True, "norm_eps": 0.03, "norm": norm}
    model = tiny.seq2seq(**options, embedding_norm=norm == "post")
    norms = [one for one in model.modules() if isinstance(one, nn.RMSNorm | nn.LayerNorm)]
    assert len(norms) == 2 + 2 * 2 + 2 * 3  # both stacks or both embeddings, and the layers
    assert all(isinstance(one, nn.RMSNorm) and one.eps == 0.03 for one in norms)


def test_embeddings_are_normalised_after_positions_and_before_dropout() -> None:
    model = tiny.seq2seq(embedding_norm=True, norm_eps=0.2, position="learned", dtype=torch.float64)
    seen: list[Tensor] = []
    for block in (model.encoder.blocks[0], model.decoder.blocks[0]):
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[0, 8]])
    for one in (model.encoder_embedding_norm, model.decoder_embedding_norm):
        nn.init.normal_(one.weight)
        nn.init.normal_(one.bias)
    with torch.no_grad():
        model(input_ids=source, decoder_input_ids=target)
    sides = zip(
        (model.encoder_embedding_norm, model.decoder_embedding_norm),
        (model.encoder_position, model.decoder_position),
        (source, target),
        seen,
        strict=True,
    )
    for norm, position, ids, entered in sides:
        table = position.table.weight[: ids.shape[1]]
        embedded = model.tokens.weight[ids] * 16**0.5 + table
        torch.testing.assert_close(entered, normed(norm, embedded))
