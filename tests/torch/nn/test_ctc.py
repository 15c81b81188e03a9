"""CTC equals its definition (all paths enumerated) and PyTorch's loss."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from outrider.decoding.parallel import collapse
from outrider.torch.nn import ctc as ctc_module
from outrider.torch.nn.ctc import ctc_loss, fits, viterbi

BLANK = 0


def read(path: tuple[int, ...]) -> list[int]:
    """The definition, slot by slot."""
    out, before = [], None
    for token in path:
        if token not in (before, BLANK):
            out.append(token)
        before = token
    return out


def task(data: st.DataObject, *, rows: int = 3, slots: int = 5, vocabulary: int = 4):
    """Ragged rows: logits, labels with random padding, and both lengths; some rows do not fit."""
    seed = data.draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, slots, vocabulary, dtype=torch.float64, generator=generator) * 2
    labels = torch.randint(1, vocabulary, (rows, 4), generator=generator)
    labels_B = torch.randint(0, 5, (rows,), generator=generator)
    slots_B = torch.randint(1, slots + 1, (rows,), generator=generator)
    return logits, labels, labels_B, slots_B


@given(path=st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_collapse_reads_a_path(path: list[int]) -> None:
    assert collapse(path, blank=BLANK) == read(tuple(path))
    assert collapse(path[:1], blank=BLANK) == read(tuple(path[:1]))


@settings(max_examples=25)
@given(data=st.data())
def test_viterbi_finds_the_best_of_all_paths(data: st.DataObject) -> None:
    logits, labels, labels_B, slots_B = task(data)
    path_BU = viterbi(logits, labels, labels_B, slots_B, blank=BLANK)
    possible = fits(labels, labels_B, slots_B)
    for row, (path, count) in enumerate(zip(path_BU.tolist(), slots_B.tolist(), strict=True)):
        wanted = labels[row, : labels_B[row]].tolist()
        paths = [p for p in product(range(4), repeat=count) if read(p) == wanted]
        assert bool(possible[row]) == bool(paths)
        if not paths:
            assert set(path) == {-1}
            continue
        best = max(paths, key=lambda p: sum(logits[row, u, t].item() for u, t in enumerate(p)))
        assert path == [*best, *[-1] * (len(path) - count)]


@settings(max_examples=25)
@given(data=st.data())
def test_loss_is_the_sum_over_all_paths(data: st.DataObject) -> None:
    logits, labels, labels_B, slots_B = task(data)
    expected = 0.0
    for row, count in enumerate(slots_B.tolist()):
        wanted = labels[row, : labels_B[row]].tolist()
        prob = logits[row].softmax(-1)
        paths = [p for p in product(range(4), repeat=count) if read(p) == wanted]
        total = sum(prob[range(count), list(p)].prod() for p in paths)
        expected -= float(torch.as_tensor(total).log()) if paths else 0.0
    loss = ctc_loss(logits, labels, labels_B, slots_B, blank=BLANK)
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=25)
@given(
    data=st.data(),
    smoothing=st.sampled_from([0.0, 0.1]),
    scale=st.sampled_from([1.0, 0.3]),
    outer=st.sampled_from([1.0, 1.7]),
)
def test_loss_and_gradient_equal_pytorchs(
    data: st.DataObject, smoothing: float, scale: float, outer: float
) -> None:
    logits, labels, labels_B, slots_B = task(data, rows=4, slots=9, vocabulary=7)
    logits.requires_grad_()
    log_prob = logits.log_softmax(-1)
    nll_B = F.ctc_loss(
        log_prob.transpose(0, 1), labels, slots_B, labels_B, reduction="none", zero_infinity=True
    )
    here_BU = torch.arange(9) < slots_B[:, None]
    here_BU = here_BU & fits(labels, labels_B, slots_B)[:, None]
    spread = -(log_prob.mean(-1) * here_BU).sum()
    theirs = ((1 - smoothing) * nll_B.sum() + smoothing * spread) * scale
    ours = ctc_loss(
        logits, labels, labels_B, slots_B, blank=BLANK, smoothing=smoothing, scale=scale
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    (mine,) = torch.autograd.grad(ours * outer, logits)
    (reference,) = torch.autograd.grad(theirs * outer, logits)
    torch.testing.assert_close(mine, reference, rtol=1e-7, atol=1e-9)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(3, 8, 11, dtype=torch.float64, requires_grad=True)
    labels, labels_B = torch.randint(1, 11, (3, 3)), torch.tensor([3, 2, 0])
    rest = (labels, labels_B, torch.tensor([8, 6, 8]))
    whole = ctc_loss(logits, *rest, blank=BLANK, smoothing=0.1)
    monkeypatch.setattr(ctc_module, "_CHUNK", 40)
    parts = ctc_loss(logits, *rest, blank=BLANK, smoothing=0.1)
    torch.testing.assert_close(whole, parts)
    wanted, found = (torch.autograd.grad(loss, logits)[0] for loss in (whole, parts))
    torch.testing.assert_close(wanted, found)


def test_low_precision_logits_are_summed_in_float32() -> None:
    """Also where a slot is nearly certain: p - gamma is a small difference of values near 1."""
    logits = torch.randn(2, 12, 300, generator=torch.Generator().manual_seed(0))
    labels, labels_B, slots_B = torch.tensor([[5, 6], [7, 7]]), torch.tensor([2, 2]), torch.tensor
    logits[:, :, BLANK] += 12
    low = logits.bfloat16().requires_grad_()
    exact = low.detach().double().requires_grad_()
    losses = [ctc_loss(x, labels, labels_B, slots_B([12, 10]), blank=BLANK) for x in (low, exact)]
    assert losses[0].dtype == torch.float32
    torch.testing.assert_close(losses[0].double(), losses[1], rtol=1e-5, atol=1e-5)
    mine, wanted = (torch.autograd.grad(x, z)[0] for x, z in zip(losses, (low, exact), strict=True))
    assert mine.dtype == torch.bfloat16
    torch.testing.assert_close(mine.double(), wanted, rtol=1e-2, atol=1e-6)
