"""Positions that bias scores equal the plain formulas, which share no code with the fast form."""

import math

import pytest
import torch
from torch import Tensor, nn

from outrider.torch.nn.attention import HeadShape, build_attention
from outrider.torch.nn.layer.heads import SelfAttention
from outrider.torch.nn.position import Columns, Positions
from outrider.torch.nn.position.alibi import Alibi
from outrider.torch.nn.position.relative import Relative
from tests.helpers.attention_equation import assert_same_with_gradient

CPU = torch.device("cpu")
WIDTH, HEADS, GROUPS = 12, 2, 1
HEAD = WIDTH // HEADS


def build(columns: Columns, *, causal: bool = True, kind: str = "causal") -> SelfAttention:
    torch.manual_seed(0)
    shape = HeadShape(HEADS, GROUPS, HEAD + columns.extra)
    attention = build_attention({"kind": kind}, causal=causal, shape=shape)
    layer = SelfAttention(WIDTH, HEADS, attention, kv_heads=GROUPS, columns=columns)
    for parameter in columns.parameters():
        nn.init.normal_(parameter)
    return layer.double()


def parts(layer: SelfAttention, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by head, [H or G, T, K] each, from the layer's weights."""
    qkv = (x_TD @ layer.qkv.weight.T + layer.qkv.bias).view(len(x_TD), -1, HEAD).transpose(0, 1)
    return qkv[:HEADS], qkv[HEADS : HEADS + GROUPS], qkv[HEADS + GROUPS :]


def plain(layer: SelfAttention, x_TD: Tensor, bias: Tensor, *, causal: bool) -> Tensor:
    """Attend with the given scores [H, T, T]."""
    _, _, v = parts(layer, x_TD)
    hidden = torch.ones(bias.shape[1:], dtype=torch.bool).triu(1) if causal else None
    scores = bias if hidden is None else bias.masked_fill(hidden, -torch.inf)
    out = scores.softmax(-1) @ v
    return out.transpose(0, 1).flatten(1) @ layer.out.weight.T + layer.out.bias


def code(distance: int, width: int) -> Tensor:
    angles = [distance / 10_000 ** (2 * k / width) for k in range(width // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def four_terms(layer: SelfAttention, columns: Relative, x_TD: Tensor) -> Tensor:
    q, k, _ = parts(layer, x_TD)
    rows = []
    for h in range(HEADS):
        u, v, weight = columns.content_bias[h, 0], columns.place_bias[h, 0], columns.weight_HKE[h]
        for i in range(len(x_TD)):
            for j in range(len(x_TD)):
                place = weight @ code(i - j, columns.extra)
                key = k[h // (HEADS // GROUPS), j]
                terms = q[h, i] @ key + q[h, i] @ place + u @ key + v @ place
                rows.append(terms / HEAD**0.5)
    return torch.stack(rows).view(HEADS, len(x_TD), len(x_TD))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("codes", [2, 6, 10])
def test_relative_equals_the_four_terms_of_transformer_xl(causal: bool, codes: int) -> None:
    columns = Relative(HEADS, head_width=HEAD, codes=codes)
    layer = build(columns, causal=causal, kind="causal" if causal else "full")
    x = torch.randn(7, WIDTH, dtype=torch.float64, requires_grad=True)
    fast = layer(x[None], Positions.upto(7, CPU))[0]
    slow = plain(layer, x, four_terms(layer, columns, x), causal=causal)
    assert_same_with_gradient(fast, slow, (x, *layer.parameters()))


def test_alibi_equals_one_slope_per_head() -> None:
    layer = build(Alibi(HEADS, head_width=HEAD))
    x = torch.randn(7, WIDTH, dtype=torch.float64, requires_grad=True)
    q, k, _ = parts(layer, x)
    distance = torch.arange(7)[:, None] - torch.arange(7)
    slope = torch.tensor([1 / 16, 1 / 256], dtype=torch.float64)[:, None, None]
    scores = q @ k.transpose(-1, -2) / HEAD**0.5 - slope * distance
    fast = layer(x[None], Positions.upto(7, CPU))[0]
    assert_same_with_gradient(fast, plain(layer, x, scores, causal=True), (x, *layer.parameters()))


@pytest.mark.parametrize(
    ("dtype", "allowed"), [(torch.float64, 1e-9), (torch.float32, 0.01), (torch.bfloat16, 0.25)]
)
@pytest.mark.parametrize("place", [255, 4_000, 65_000])
def test_alibi_keeps_its_slope_far_into_a_text(
    dtype: torch.dtype, allowed: float, place: int
) -> None:
    """Nearby scores differ by the slope times the distance, at any position."""
    heads, width = 8, 64
    columns = Alibi(heads, head_width=width)
    index = place + torch.arange(-40, 1)
    q = torch.zeros(1, heads, 41, width, dtype=dtype)
    a, b = columns(q, q, Positions(index[None], place + 1))
    scores = (a.float() @ b.float().transpose(-1, -2)).double() / columns.root
    if dtype == torch.float64:
        scores = a @ b.transpose(-1, -2) / columns.root
    slope = torch.tensor([2.0**-h for h in range(1, 9)], dtype=torch.float64)[:, None]
    wanted = -slope * torch.arange(40, -1, -1)
    torch.testing.assert_close(scores[0, :, -1], wanted, rtol=0.004, atol=allowed)


@pytest.mark.parametrize("make", [Alibi, Relative])
def test_scores_depend_only_on_distance(make: type[Columns]) -> None:
    options = {"codes": 6} if make is Relative else {}
    columns = make(HEADS, head_width=HEAD, **options)
    layer = build(columns)
    x = torch.randn(1, 9, WIDTH, dtype=torch.float64)
    here = layer(x, Positions.upto(9, CPU))
    there = layer(x, Positions(torch.arange(9)[None] + 1234, 1243))
    torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-9)
