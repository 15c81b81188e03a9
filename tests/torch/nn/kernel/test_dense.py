"""The two implementations of dense attention are equal."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.torch.nn.kernel import dense
from tests.helpers.attention_equation import heads


@pytest.mark.usefixtures("on_device")
@given(
    tokens=st.integers(1, 12),
    keys=st.integers(1, 12),
    masked=st.booleans(),
    groups=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 2**16),
)
def test_plain_equals_sdpa(tokens: int, keys: int, masked: bool, groups: int, seed: int) -> None:
    q, _, _ = heads(2, 4, tokens, 4, seed=seed)
    _, k, v = heads(2, groups, keys, 4, seed=seed)
    keep = None
    if masked:
        dice = torch.Generator(q.device).manual_seed(seed)
        keep = torch.rand(2, 1, tokens, keys, generator=dice) < 0.5
        keep[..., 0] = True
    plain = dense.attend(q, k, v, keep=keep)
    with torch.no_grad():
        fused = dense.attend(q, k, v, keep=keep)
    torch.testing.assert_close(plain, fused, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("plain_up_to", [0, 100])
def test_causal_with_a_mask(plain_up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "PLAIN_UP_TO", plain_up_to)
    q, k, v = heads(1, 1, 6, 4)
    keep = torch.tensor([True, True, False, True, True, True])
    out = dense.attend(q, k, v, keep=keep, causal=True)
    explicit = dense.attend(q, k, v, keep=keep & torch.ones(6, 6, dtype=torch.bool).tril())
    torch.testing.assert_close(out, explicit)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("plain_up_to", [0, 100])
def test_a_query_that_sees_nothing_stays_finite(
    plain_up_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "PLAIN_UP_TO", plain_up_to)
    q, k, v = heads(1, 1, 3, 4)
    out = dense.attend(q, k, v, keep=torch.zeros(1, 1, 3, 3, dtype=torch.bool))
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(torch.isfinite(x).all() for x in (out, *grads))


def test_only_short_training_uses_the_plain_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("took the plain form")

    monkeypatch.setattr(dense, "_plain", refuse)
    q, k, v = heads(1, 1, dense.PLAIN_UP_TO + 1, 4)
    dense.attend(q, k, v)
    short = (x[:, :, :8] for x in (q, k, v))
    with pytest.raises(AssertionError, match="took the plain form"):
        dense.attend(*short)


def test_dropout_on_weights_keeps_the_mean() -> None:
    torch.manual_seed(0)
    q, k, v = heads(64, 1, 16, 4)
    exact = dense.attend(q, k, v)
    dropped = torch.stack([dense.attend(q, k, v, dropout=0.2) for _ in range(60)])
    assert not torch.equal(dropped[0], dropped[1])
    assert (dropped.mean(0) - exact).abs().mean() < 0.03
