"""Local 2D attention equals its equation: dense for small images, in blocks for larger ones."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.nn.attention import HeadShape, local_2d
from outrider.torch.nn.attention.local_2d import Attention, Config
from outrider.torch.nn.cache import SLACK
from tests.helpers.attention_equation import assert_same_with_gradient, equation, heads


@st.composite
def configs(draw: st.DrawFn) -> Config:
    columns = draw(st.integers(1, 7))
    return Config(
        columns=columns,
        block_rows=draw(st.integers(1, 3)),
        block_columns=draw(st.integers(1, columns)),
        margin=draw(st.integers(0, 3)),
    )


def build(config: Config, *, causal: bool) -> Attention:
    return Attention(config, causal=causal, shape=HeadShape(1, 1, 3))


def in_pattern(config: Config, i: int, j: int, *, causal: bool) -> bool:
    """The pattern by its definition: enumerate the pixels of the block and its margin."""
    row, column = divmod(i, config.columns)
    top = row - row % config.block_rows
    left = column - column % config.block_columns
    pixels = {
        (r, c)
        for r in range(top - config.margin, top + config.block_rows)
        for c in range(left - config.margin, left + config.block_columns + config.margin)
    }
    return divmod(j, config.columns) in pixels and (j <= i or not causal)


@settings(max_examples=60)
@given(
    length=st.integers(1, 50),
    config=configs(),
    causal=st.booleans(),
    real=st.integers(1, 50),
    seed=st.integers(0, 2**16),
    band=st.sampled_from([None, 1, 2048]),
)
def test_matches_equation_and_its_gradient(
    length: int, config: Config, causal: bool, real: int, seed: int, band: int | None
) -> None:
    real = length if causal else min(real, length)
    q, k, v = heads(length, 3, seed=seed)
    keep = None if causal else (torch.arange(length) < real)[None]
    attention = build(config, causal=causal)
    run = attention.run if band is None else attention._blocked
    with mock.patch.object(local_2d, "BAND_TOKENS", band or 2048):
        fast = run(q[None, None], k[None, None], v[None, None], keep)[0, 0]

    def sees(i: int, j: int) -> bool:
        return in_pattern(config, i, j, causal=causal) and j < real

    seeing = [i for i in range(real) if any(sees(i, j) for j in range(length))]
    slow = torch.cat([equation(q[i : i + 1], k, v, lambda _, j, i=i: sees(i, j)) for i in seeing])
    assert_same_with_gradient(fast[seeing], slow, (q, k, v))


@pytest.mark.parametrize("length", [17, 96, 101])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_outside_the_image_have_no_effect(length: int, dtype: torch.dtype) -> None:
    """Blocks at the edges have queries without keys; the gradient must stay finite."""
    config = Config(columns=17, block_rows=3, block_columns=5, margin=0)
    inputs = [x.detach().to(dtype).requires_grad_() for x in heads(2, 3, length, 4)]
    fast = build(config, causal=True)._blocked(*inputs, None)
    grads = torch.autograd.grad(fast.sum(), inputs)
    assert all(x.isfinite().all() for x in (fast, *grads))
    with torch.no_grad():  # another kernel
        assert build(config, causal=True)._blocked(*inputs, None).isfinite().all()


@pytest.mark.parametrize("causal", [True, False])
def test_bands_with_batches_and_grouped_heads(causal: bool) -> None:
    """Several rows and heads, some of them padded, in several bands."""
    config = Config(columns=7, block_rows=2, block_columns=3, margin=3)
    attention = Attention(config, causal=causal, shape=HeadShape(4, 2, 3))
    q, _, _ = heads(2, 4, 61, 3)
    k, v, _ = heads(2, 2, 61, 3, seed=1)
    keep = None if causal else torch.arange(61) < torch.tensor([[61], [47]])
    with mock.patch.object(local_2d, "BAND_TOKENS", 28):
        fast = attention._blocked(q, k, v, keep)
    slow = attention.reference(q, k, v, keep_BT=keep)
    real = torch.ones(1) if keep is None else keep[:, None, :, None]
    assert_same_with_gradient(fast * real, slow * real, (q, k, v))


def test_recomputed_bands_have_the_same_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(columns=7, block_rows=2, block_columns=3, margin=3)
    attention = Attention(config, causal=True, dropout=0.3, shape=HeadShape(2, 2, 4)).train()
    monkeypatch.setattr(local_2d, "BAND_TOKENS", 28)
    inputs = [x.detach().requires_grad_() for x in heads(1, 2, 61, 4)]

    def grads() -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        out = attention._blocked(*inputs, None)
        torch.rand(5)  # later use of the generators has no effect
        return torch.autograd.grad(out.square().sum(), inputs)

    def plainly(run, bands, *inputs):
        return torch.cat([run(*local_2d._take(inputs, *band)) for band in bands], dim=2)

    again = grads()
    monkeypatch.setattr(local_2d._Bands, "apply", plainly)
    for ours, plain in zip(again, grads(), strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-12, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_large_images_run_in_blocks(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0

    def attend(q, k, v, **options):
        nonlocal largest
        largest = max(largest, q.shape[2] * k.shape[2])
        return real_attend(q, k, v, **options)

    real_attend = local_2d.attend
    monkeypatch.setattr(local_2d, "attend", attend)
    q, k, v = heads(1, 1, 900, 4)
    config = Config(columns=30, block_rows=4, block_columns=4, margin=2)
    build(config, causal=causal)(q, k, v)
    assert largest == 4 * 4 * 6 * 8


@given(length=st.integers(1, 60), config=configs(), causal=st.booleans())
def test_cost_counts_the_pairs_of_the_pattern(length: int, config: Config, causal: bool) -> None:
    pairs = sum(
        in_pattern(config, i, j, causal=causal) for i in range(length) for j in range(length)
    )
    assert build(config, causal=causal).cost(length).pairs == pairs


@given(config=configs(), length=st.integers(1, 80))
def test_the_cache_covers_every_query(config: Config, length: int) -> None:
    attention = build(config, causal=True)
    at = torch.arange(length)
    i, j = attention.sees(at[:, None], at[None]).nonzero().unbind(1)
    assert int((i - j).max()) <= attention.slots(10_000) - SLACK


def test_cache_holds_the_rows_of_a_block_and_its_margin() -> None:
    attention = build(Config(columns=32, block_rows=8, margin=4), causal=True)
    assert attention.slots(65_536) == attention.slots(1_024) == 11 * 32 + 11 + SLACK
    assert attention.slots(10) == 10


@pytest.mark.parametrize("name", ["columns", "block_rows", "block_columns"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"attention\.{name}: got 0, expected 1 or more"):
        Config(**{name: 0})


def test_a_margin_may_be_zero_but_not_negative() -> None:
    assert Config(margin=0).key_columns == 8
    with pytest.raises(ConfigError, match=r"attention\.margin: got -1, expected 0 or more"):
        Config(margin=-1)


def test_a_block_must_fit_into_the_image() -> None:
    with pytest.raises(ConfigError, match=r"block_columns: got 9, expected at most .* 8"):
        Config(columns=8, block_columns=9)
