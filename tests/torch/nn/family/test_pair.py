"""Pair attention equals its equation, alone and in an encoder."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.torch.nn.family.pair import PairAttention
from tests.helpers import tiny


def woken(width: int) -> PairAttention:
    """A layer with non-initial weights."""
    layer = PairAttention(width).double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_()
    return layer


def equation(layer: PairAttention, x: Tensor) -> Tensor:
    """One row without padding, [S, D], position by position."""
    width, count = x.shape[1], len(x)
    project = layer.query_key.weight @ x.T + layer.query_key.bias[:, None]
    q, k = project[:width].T, project[width:].T
    rows = []
    for i in range(count):
        exps = [torch.exp(q[i] @ k[j] / math.sqrt(width)) for j in range(count)]
        once = [one / sum(exps) for one in exps]
        again = [torch.exp(layer.sharpness * once[j]) for j in range(count - 1)]
        pooled = torch.zeros_like(x[0])
        for j in range(count - 1):
            pooled = pooled + again[j] / sum(again) * x[j]
        rows.append(x[i] + (layer.gate_DD @ x[0]) * x[i] + layer.mix_DD @ pooled)
    return torch.stack(rows)


@settings(max_examples=20)
@given(length=st.integers(1, 6), width=st.integers(1, 5), seed=st.integers(0, 999))
def test_matches_its_equation_and_gradient(length: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    layer = woken(width)
    x = torch.randn(2, length, width, dtype=torch.float64, requires_grad=True)
    fast = layer(x)
    slow = torch.stack([equation(layer, row) for row in x])
    torch.testing.assert_close(fast, slow)
    weight, inputs = torch.randn_like(slow), [x, *layer.parameters()]
    ours = torch.autograd.grad((fast * weight).sum(), inputs)
    theirs = torch.autograd.grad(
        (slow * weight).sum(), inputs, allow_unused=True, materialize_grads=True
    )
    torch.testing.assert_close(ours, theirs)


def test_padding_is_masked() -> None:
    layer, lengths = woken(4), [5, 1, 3]
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    keep = torch.arange(5) < torch.tensor(lengths)[:, None]
    together = layer(x, keep)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(together[row, :length], equation(layer, x[row, :length]))


def test_a_new_model_equals_a_plain_one() -> None:
    source, target = torch.randint(4, 23, (2, 5)), torch.randint(4, 23, (2, 4))
    paired = tiny.seq2seq(pair_attention=True, dtype=torch.float64)
    plain = tiny.seq2seq(dtype=torch.float64)
    missing = plain.load_state_dict(paired.state_dict(), strict=False)
    assert missing.missing_keys == []
    with torch.no_grad():
        found = paired(input_ids=source, decoder_input_ids=target).logits
        wanted = plain(input_ids=source, decoder_input_ids=target).logits
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("autocast", [False, True])
def test_all_weights_are_trained(autocast: bool) -> None:
    model = tiny.seq2seq(pair_attention=True).train()
    assert model.pair is not None
    before = {name: one.clone() for name, one in model.pair.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    source, labels = torch.randint(4, 23, (3, 5)), torch.randint(4, 23, (3, 4))
    keep = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    for _ in range(3):  # queries and keys get a gradient once U is not zero
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(input_ids=source, attention_mask=keep.long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, one in model.pair.named_parameters():
        assert bool(one.isfinite().all())
        assert not torch.equal(one, before[name]), name
