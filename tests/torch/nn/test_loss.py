"""The memory-saving cross entropy equals PyTorch's and its equation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from outrider.torch.nn import loss as loss_module
from outrider.torch.nn.loss import IGNORED, counted_places, smoothed_cross_entropy


@given(
    tokens=st.integers(1, 7),
    vocabulary=st.integers(2, 11),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**16),
)
def test_equals_cross_entropy_forward_and_backward(
    tokens: int, vocabulary: int, smoothing: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, vocabulary, dtype=torch.float64, generator=generator) * 3
    logits.requires_grad_()
    labels = torch.randint(vocabulary, (tokens,), generator=generator)
    labels[1::3] = IGNORED
    ours = smoothed_cross_entropy(logits, labels, smoothing)
    theirs = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    (mine,) = torch.autograd.grad(ours * 1.7, logits)
    (reference,) = torch.autograd.grad(theirs * 1.7, logits)
    torch.testing.assert_close(mine, reference, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda z: smoothed_cross_entropy(z, labels, smoothing), logits)
    scaled = smoothed_cross_entropy(logits, labels, smoothing, scale=0.25)
    torch.testing.assert_close(scaled, ours / 4)
    (quarter,) = torch.autograd.grad(scaled, logits)
    torch.testing.assert_close(quarter, reference / 1.7 / 4, rtol=1e-12, atol=1e-12)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(37, 11, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(11, (37,))
    whole = smoothed_cross_entropy(logits, labels, 0.1)
    monkeypatch.setattr(loss_module, "_CHUNK", 40)
    parts = smoothed_cross_entropy(logits, labels, 0.1)
    torch.testing.assert_close(whole, parts)
    wanted, found = (torch.autograd.grad(loss, logits)[0] for loss in (whole, parts))
    torch.testing.assert_close(wanted, found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(50, 3000, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits.requires_grad_()
    labels = torch.arange(50)
    loss = smoothed_cross_entropy(logits, labels, 0.1)
    exact = F.cross_entropy(logits.double(), labels, label_smoothing=0.1, reduction="sum")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.dtype == dtype


def test_positions_with_a_label_come_first_in_order() -> None:
    label = torch.tensor([[IGNORED, 5, IGNORED, 7], [8, IGNORED, IGNORED, IGNORED]])
    assert counted_places(label, 512).tolist() == [1, 3, 4, 0, 2, 5, 6, 7], "for want of more"
    assert counted_places(label, 2).tolist() == [1, 3, 4, 0], "filled up to a full step"
    assert counted_places(torch.full((2, 4), IGNORED), 2).tolist() == [0, 1], "never none"
