"""Blocks for FlexAttention equal the dense pattern. Its CUDA kernels run only on a GPU."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from outrider.torch.nn.attention import (
    AttentionBase,
    HeadShape,
    attention_kinds,
    build_attention,
    load_attention,
)
from outrider.torch.nn.kernel import flex

CPU = torch.device("cpu")
SHAPE = HeadShape(2, 2, 16)
OPTIONS = {"mixed": {"parts": [{"heads": 1, "kind": "causal"}, {"kind": "sliding", "window": 50}]}}
SIDES = [
    (kind, causal)
    for kind in attention_kinds()
    for causal, able in ((True, "causal_ok"), (False, "two_sided_ok"))
    if getattr(load_attention(kind).Attention, able) and load_attention(kind).Attention.positional
]


def build(kind: str, *, causal: bool = True, **options: int) -> AttentionBase:
    spec = {"kind": kind, **(options or OPTIONS.get(kind, {}))}
    return build_attention(spec, causal=causal, shape=SHAPE).eval()


def dense_blocks(attention: AttentionBase, length: int) -> flex.Blocks:
    """The definition: test every pair of every block."""
    at = torch.arange(length)
    seen = attention.sees(at[:, None], at[None])
    missing = -length % flex.BLOCK
    count = (length + missing) // flex.BLOCK
    seen = F.pad(seen, (0, missing, 0, missing))
    seen = seen.view(count, flex.BLOCK, count, flex.BLOCK).transpose(1, 2)
    return flex.Blocks(seen.flatten(2).any(-1), seen.flatten(2).all(-1))


@pytest.mark.parametrize(("kind", "causal"), SIDES)
@pytest.mark.parametrize("length", [1, 300, 1024])
def test_blocks_equal_those_of_the_dense_pattern(kind: str, causal: bool, length: int) -> None:
    attention = build(kind, causal=causal)
    found = flex.find_blocks(attention, length, CPU)
    assert found is not None
    wanted = dense_blocks(attention, length)
    assert torch.equal(found.some, wanted.some)
    assert torch.equal(found.every, wanted.every)


@settings(max_examples=30)
@given(
    columns=st.integers(1, 200),
    rows=st.integers(1, 9),
    margin=st.integers(0, 30),
    window=st.integers(1, 500),
    length=st.integers(1, 700),
    causal=st.booleans(),
    data=st.data(),
)
def test_ranges_are_conservative(
    columns: int,
    rows: int,
    margin: int,
    window: int,
    length: int,
    causal: bool,
    data: st.DataObject,
) -> None:
    """No visible block is missing, and no partial block counts as full."""
    across = data.draw(st.integers(1, columns))
    options = {"columns": columns, "block_rows": rows, "block_columns": across, "margin": margin}
    for attention in (
        build("local_2d", causal=causal, **options),
        build("sliding", causal=causal, window=window),
    ):
        bounds, wanted = flex._bounds(attention, length, CPU), dense_blocks(attention, length)
        assert not (wanted.some & ~bounds.some).any()
        assert not (bounds.every & ~wanted.every).any()
        found = flex.find_blocks(attention, length, CPU)
        assert found is not None
        assert torch.equal(found.some, wanted.some)


@given(
    low=st.integers(-50, 50),
    size=st.integers(0, 20),
    other=st.integers(-50, 50),
    other_size=st.integers(0, 20),
    number=st.integers(1, 12),
)
def test_ranges_hold_every_result(
    low: int, size: int, other: int, other_size: int, number: int
) -> None:
    a = flex._Range(torch.tensor(low), torch.tensor(low + size))
    b = flex._Range(torch.tensor(other), torch.tensor(other + other_size))
    i = torch.arange(low, low + size + 1)[:, None]
    j = torch.arange(other, other + other_size + 1)[None]
    values = (
        (a + b, i + j),
        (a - b, i - j),
        (number - a, number - i),
        (number + a, number + i),
        (-a, -i),
        ((a - b).abs(), (i - j).abs()),
        (a * number, i * number),
        (a * -number, i * -number),
        (a // number, i // number),
        (a % number, i % number),
    )
    for found, true in values:
        assert found.low <= true.min()
        assert true.max() <= found.high
    truths = (
        (a < b, i < j),
        (a <= b, i <= j),
        (a > b, i > j),
        (a >= b, i >= j),
        (a == b, i == j),
        (a != b, i != j),
        (a % number == 0, i % number == 0),
        ((a < b) | (a == number), (i < j) | (i == number)),
        (~(a < b) & (a >= number), ~(i < j) & (i >= number)),
    )
    for found, true in truths:
        assert found.some or not true.any()
        assert true.all() or not found.every


def test_a_long_window_evaluates_few_pairs() -> None:
    """At 64k tokens the dense mask would have 4 billion pairs."""
    attention = build("sliding", window=256)
    asked = 0

    class Counted:
        key = attention.key

        def sees(self, i: Tensor, j: Tensor) -> Tensor:
            nonlocal asked
            if isinstance(i, Tensor):
                asked += torch.broadcast_shapes(i.shape, j.shape).numel()
            return attention.sees(i, j)

    blocks = flex.find_blocks(Counted(), 65_536, CPU)
    assert blocks is not None
    assert asked <= 3 * 65_536 * flex.BLOCK
    assert blocks.some.sum() == 3 * 512 - 3


def test_the_mask_equals_that_of_torch() -> None:
    attention = build("sliding", window=300)
    found = flex.find_blocks(attention, 900, CPU)
    assert found is not None
    assert found.every.any()
    mask = flex.block_mask(attention, found, 900)
    wanted = create_block_mask(
        lambda b, h, i, j: attention.sees(i, j), None, None, 900, 900, device="cpu"
    )
    for name in ("kv", "full_kv", "q", "full_q"):
        counts, other = (getattr(m, f"{name}_num_blocks") for m in (mask, wanted))
        assert torch.equal(counts, other)
        index, other_index = (getattr(m, f"{name}_indices") for m in (mask, wanted))
        listed = torch.arange(index.shape[-1]) < counts[..., None]
        assert torch.equal(index[listed], other_index[listed])


def test_nearly_dense_patterns_are_not_used() -> None:
    q, k, v = torch.randn(3, 1, 2, 1024, 16).unbind(0)
    assert flex.attend(build("causal"), q, k, v, None) is None
    assert flex.find_blocks(build("full", causal=False), 1024, CPU, most=0.5) is None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("padded", [False, True])
def test_the_compiled_pass_equals_the_reference(padded: bool) -> None:
    attention = build("sliding", causal=not padded, window=300 if not padded else 20)
    q = torch.randn(2, 2, 900, 16)
    k, v = torch.randn(2, 2, 1, 900, 16).unbind(0)  # grouped heads
    keep = torch.arange(900) < torch.tensor([[900], [640]]) if padded else None
    found = flex.find_blocks(attention, 900, CPU)
    assert found is not None
    with torch.no_grad():
        mask = flex.block_mask(attention, found, 900, keep)
        out = torch.compile(flex_attention)(q, k, v, block_mask=mask, enable_gqa=True)
        wanted = attention.reference(q, k, v, keep_BT=keep)
    real = torch.ones(1) if keep is None else keep[:, None, :, None]
    torch.testing.assert_close(out * real, wanted * real, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_forward_and_gradient_equal_the_reference() -> None:
    attention = build("sliding", window=100).cuda()
    q = torch.randn(2, 2, 2000, 16, device="cuda", requires_grad=True)
    k, v = (torch.randn(2, 1, 2000, 16, device="cuda", requires_grad=True) for _ in "kv")
    fast = flex.attend(attention, q, k, v, None)
    assert fast is not None
    slow = attention.reference(q, k, v)
    torch.testing.assert_close(fast, slow, rtol=1e-2, atol=1e-3)
    weight = torch.randn_like(slow)
    grads = (torch.autograd.grad((y * weight).sum(), (q, k, v)) for y in (fast, slow))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
