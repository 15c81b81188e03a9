"""Tiles cover a pattern once; attention over them is exact, uses little memory and compiles."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.torch.nn.attention import HeadShape, build_attention
from outrider.torch.nn.kernel import merge
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.kernel.merge import attend_tiles
from outrider.torch.nn.kernel.tiles import StridedRange, Tile, block_tiles
from tests.helpers.attention_equation import assert_same_with_gradient, heads
from tests.helpers.small_tiles import small_tiles

FACTORS = [
    {"use": "merge"},
    {"use": "interleave", "factor": 1},
    {"use": "interleave", "factor": 2},
]
SPECS = [
    {"kind": "sliding", "window": 5},
    {"kind": "local", "block": 4, "memory": 7},
    {"kind": "local", "block": 5, "memory": 0},
    *({"kind": "strided", "stride": 4, **use} for use in FACTORS),
    *({"kind": "fixed", "stride": 5, "summary": 2, **use} for use in FACTORS),
]


@given(
    length=st.integers(1, 60), spec=st.sampled_from(SPECS), causal=st.booleans(), big=st.booleans()
)
def test_tiles_hold_every_pair_of_the_pattern_once(
    length: int, spec: dict, causal: bool, big: bool
) -> None:
    attention = build_attention(spec, causal=causal, shape=HeadShape(1, 1, 4))
    cpu = torch.device("cpu")
    if big:
        tiles = attention.tiles(length, cpu)
    else:
        with small_tiles():
            tiles = attention.tiles(length, cpu)
    count = torch.zeros(length, length, dtype=torch.long)
    met = torch.zeros(length, dtype=torch.long)
    for tile in tiles:
        for i, j in zip(tile.queries.positions(), tile.keys.positions(), strict=True):
            keep = torch.ones(len(i), len(j), dtype=torch.bool)
            keep = keep.tril() if tile.causal else keep if tile.keep is None else tile.keep
            count[i[:, None], j[None]] += keep
            assert not tile.more or (met[i] == 1).all()
            met[i] += not tile.more
    at = torch.arange(length)
    assert torch.equal(count, attention.sees(at[:, None], at[None]).long())
    assert (met == 1).all()


@pytest.mark.parametrize(
    "grid",
    [
        StridedRange(2, 3, 4, length=6),
        StridedRange(1, 5, 1, 4, 5),
        StridedRange(3, runs=4, jump=5, length=2),
        StridedRange(1, 2, 9, 2, 4, 3),
    ],
)
def test_a_grid_reads_and_adds_at_its_positions(grid: StridedRange) -> None:
    x = torch.randn(2, 30, 3).transpose(0, 1).contiguous().transpose(0, 1)
    at = grid.positions()
    torch.testing.assert_close(grid.read(x), x[:, at])
    more = torch.randn(2, grid.sets, grid.size, 3)
    want = x.index_add(1, at.flatten(), more.flatten(1, 2))
    grid.add(x, more)
    torch.testing.assert_close(x, want)


def window(n: int) -> list[Tile]:
    return block_tiles(n, 4, before=6, sees=lambda i, j: (j <= i) & (i - j < 7))


def dense_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(q.shape[2])
    apart = at[:, None] - at[None]
    return attend(q, k, v, keep=(apart >= 0) & (apart < 7))


def test_plain_products_equal_the_kernel() -> None:
    """The implementation for other devices and for dropout."""
    q, k, v = heads(2, 4, 30, 4)
    k, v = k[:, :2], v[:, :2]
    fast = attend_tiles(q, k, v, window)
    products = merge._by_matrix_products(q, k, v, window(30), 0.0)
    assert_same_with_gradient(products, fast, (q,))
    torch.testing.assert_close(products, dense_window(q, k, v))


def test_dropout_drops_weights_and_keeps_their_mean() -> None:
    torch.manual_seed(0)
    q, k, _ = heads(1, 1, 20, 4)
    v = torch.ones(1, 1, 20, 4, dtype=torch.float64)
    outs = torch.stack([attend_tiles(q, k, v, window, dropout=0.5) for _ in range(400)])
    assert outs.std(0).min() > 0.05
    torch.testing.assert_close(outs.mean(0), v, rtol=0, atol=0.25)


def test_saved_tensors_are_linear_in_the_length() -> None:
    q, k, v = heads(1, 2, 3000, 4)
    kept: list[int] = []

    def pack(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    attention = build_attention({"kind": "strided", "stride": 55}, causal=True, shape=SHAPE)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        attention(q, k, v)
    assert max(kept) <= q.numel()
    assert sum(kept) <= 6 * q.numel()


SHAPE = HeadShape(2, 2, 4)


def test_strided_inputs_are_accepted() -> None:
    """Heads of a projection are not contiguous."""
    fused = torch.randn(2, 33, 3 * 2 * 4, dtype=torch.float64, requires_grad=True)
    q, k, v = fused.unflatten(2, (6, 4)).transpose(1, 2).chunk(3, dim=1)
    assert_same_with_gradient(attend_tiles(q, k, v, window), dense_window(q, k, v), (fused,))
    last = (x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v))
    assert_same_with_gradient(attend_tiles(*last, window), dense_window(q, k, v), (fused,))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_with_its_gradient(backend: str) -> None:
    torch.compiler.reset()  # kinds share `forward`; recompilations are limited
    inputs = heads(1, 2, 30, 4)
    attention = build_attention({"kind": "strided", "stride": 4}, causal=True, shape=SHAPE)
    with small_tiles():
        compiled = torch.compile(attention, backend=backend, fullgraph=True)
        assert_same_with_gradient(compiled(*inputs), attention(*inputs), inputs)


@settings(max_examples=20)
@given(length=st.integers(1, 40), spec=st.sampled_from(SPECS), seed=st.integers(0, 99))
def test_future_tokens_have_no_effect(length: int, spec: dict, seed: int) -> None:
    q, k, v = (x.detach() for x in heads(1, 1, length, 4, seed=seed))
    attention = build_attention(spec, causal=True, shape=HeadShape(1, 1, 4))
    with small_tiles():
        before = attention(q, k, v)
        half = length // 2
        q[:, :, half:], k[:, :, half:], v[:, :, half:] = 9.0, 9.0, 9.0
        assert torch.equal(before[:, :, :half], attention(q, k, v)[:, :, :half])
