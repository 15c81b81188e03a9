"""Bucketed positions equal their equation, pair by pair."""

import math

import pytest
import torch
from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5Attention

from outrider.formats.spec import bucket_edges
from outrider.torch.nn.attention import HeadShape, build_attention
from outrider.torch.nn.layer.heads import SelfAttention
from outrider.torch.nn.position import Positions
from outrider.torch.nn.position.bucketed import BucketedBias, bucket
from tests.helpers import tiny
from tests.helpers.attention_equation import assert_same_with_gradient

WIDTH, HEADS, GROUPS, HEAD = 12, 4, 2, 5


def number(offset: int, buckets: int, distance: int, two_sided: bool) -> int:
    """Return the bucket of one offset j - i."""
    if two_sided:
        half = buckets // 2
        return (half if offset > 0 else 0) + number(-abs(offset), half, distance, False)
    far, exact = max(0, -offset), buckets // 2
    if far < exact:
        return far
    share = math.log(far / exact) / math.log(distance / exact)
    return min(buckets - 1, exact + int(share * (buckets - exact) + 1e-6))


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (4, 3)])
@pytest.mark.parametrize("two_sided", [False, True])
def test_buckets_of_every_offset(buckets: int, distance: int, two_sided: bool) -> None:
    offsets = torch.arange(-300, 301)
    edges = bucket_edges(buckets // 2 if two_sided else buckets, distance)
    found = bucket(offsets, torch.tensor(edges), two_sided=two_sided)
    assert (
        found.tolist()
        == T5Attention._relative_position_bucket(
            offsets, bidirectional=two_sided, num_buckets=buckets, max_distance=distance
        ).tolist()
    )
    wanted = [number(one, buckets, distance, two_sided) for one in offsets.tolist()]
    assert found.tolist() == wanted
    assert max(wanted) == buckets - 1


@pytest.mark.parametrize("causal", [False, True])
def test_attention_equation(causal: bool) -> None:
    torch.manual_seed(0)
    kind, length = "causal" if causal else "full", 9
    shape = HeadShape(HEADS, GROUPS, HEAD)
    attention = build_attention({"kind": kind}, causal=causal, shape=shape)
    bias = BucketedBias(
        HEADS, edges=bucket_edges(8 if causal else 4, 6), two_sided=not causal
    ).double()
    layer = SelfAttention(
        WIDTH, HEADS, attention, kv_heads=GROUPS, head_width=HEAD, bias=bias
    ).double()
    nn.init.normal_(bias.table.weight)

    def plain(x_BTD: Tensor) -> Tensor:
        rows = []
        for x_TD in x_BTD:
            qkv = x_TD @ layer.qkv.weight.T + layer.qkv.bias
            q, k, v = qkv.split([HEADS * HEAD, GROUPS * HEAD, GROUPS * HEAD], dim=-1)
            heads = []
            for head in range(HEADS):
                mine = slice(head * HEAD, (head + 1) * HEAD)
                group = head // (HEADS // GROUPS)
                theirs = slice(group * HEAD, (group + 1) * HEAD)
                scores = []
                for i in range(length):
                    for j in range(length):
                        place = number(j - i, 8, 6, not causal)
                        score = q[i, mine] @ k[j, theirs] / HEAD**0.5
                        score = score + bias.table.weight[place, head]
                        scores.append(score - 1e30 if causal and j > i else score)
                weights = torch.stack(scores).view(length, length).softmax(-1)
                heads.append(weights @ v[:, theirs])
            rows.append(torch.cat(heads, dim=-1) @ layer.out.weight.T + layer.out.bias)
        return torch.stack(rows)

    positions = Positions.upto(length, torch.device("cpu"))
    x = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    weights = (x, bias.table.weight, layer.qkv.weight)
    assert_same_with_gradient(layer(x, positions), plain(x), weights)
    with torch.no_grad():  # inference uses another kernel
        torch.testing.assert_close(layer(x, positions), plain(x))


def test_padding_is_masked() -> None:
    torch.manual_seed(0)
    attention = build_attention({"kind": "full"}, causal=False, shape=HeadShape(2, 2, 6))
    bias = BucketedBias(2, edges=[1, 2, 5], two_sided=True)
    layer = SelfAttention(WIDTH, 2, attention, bias=bias).double()
    bias.double()
    x, keep = torch.randn(1, 5, WIDTH, dtype=torch.float64), torch.tensor([[1, 1, 1, 0, 0]]).bool()
    with torch.no_grad():
        padded = layer(x, Positions.upto(5, torch.device("cpu")), keep)
        alone = layer(x[:, :3], Positions.upto(3, torch.device("cpu")))
    torch.testing.assert_close(padded[:, :3], alone)


def test_the_layers_of_a_stack_share_one_stored_table() -> None:
    model = tiny.seq2seq(position="bucketed", relative_buckets=8)
    names = [name for name in model.state_dict() if "bias.table" in name]
    assert names == ["encoder.bias.table.weight", "decoder.bias.table.weight"]
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[0, 8, 9]])
    model(input_ids=source, decoder_input_ids=target).logits.sum().backward()
    for stack in (model.encoder, model.decoder):
        assert stack.bias is not None
        assert stack.bias.table.weight.grad is not None
        assert all(block.attention._bias[0] is stack.bias for block in stack.blocks)
