"""The layers of a drafter, and the ways to run many blocks of slots through them at once."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from outrider.formats.description.choices import IN_ATTENTION
from outrider.torch.models.build import build_block
from outrider.torch.models.config import DrafterConfig
from outrider.torch.nn.attention import HeadShape, build_attention
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.layer.heads import SelfAttention, Source
from outrider.torch.nn.layer.recurrent import SlotLstm
from outrider.torch.nn.linear import Linear
from outrider.torch.nn.position import Positions, Rotary

__all__ = [
    "Slots",
    "block_sizes",
    "build_layer",
    "keys_and_values",
    "lstm_of",
    "run_block",
    "training_mask",
]


class Slots(NamedTuple):
    """Training slots of a batch, laid out side by side: N slots a row, in blocks."""

    anchor_BN: Tensor
    """Position of the newest token of each slot's block."""
    index_N: Tensor
    """Place of the slot in its block."""
    block_N: Tensor
    """Which block it belongs to."""
    known_BN: Tensor
    """Whether the slot is given its token instead of the mask; always true for index 0."""


def build_layer(config: DrafterConfig) -> Block:
    """Build one layer: attention or an LSTM, the source, and a feed-forward."""
    width, heads = config.hidden_size, config.num_attention_heads
    if config.core == "lstm":
        # `lstm_of` takes it out again: a layer is run with whatever stands in this place.
        return build_block(config, cast(SelfAttention, SlotLstm(width)), cross=config.cross)
    shape = HeadShape(heads, heads, width // heads)
    attention = SelfAttention(
        width,
        heads,
        build_attention({"kind": "causal"}, causal=True, shape=shape, key="drafter"),
        # The target's embeddings say nothing of positions, so this layer turns its keys.
        rotary=Rotary(width // heads) if config.position in IN_ATTENTION else None,
    )
    return build_block(config, attention, cross=config.cross)


def lstm_of(block: Block) -> SlotLstm:
    """Take the LSTM out of a layer that has one in place of attention."""
    return cast(SlotLstm, block.attention)


def block_sizes(slots: Slots) -> list[int]:
    """Count the slots of each block, in order."""
    sizes: list[int] = torch.unique_consecutive(slots.block_N, return_counts=True)[1].tolist()
    return sizes


def keys_and_values(
    block: Block, inject: Linear, states_BTE: Tensor, positions: Positions
) -> tuple[Tensor, Tensor]:
    """Project the target's states for one layer of the drafter."""
    attention = block.attention
    kv = inject(states_BTE).unflatten(-1, (-1, attention.head_width)).transpose(1, 2)
    k, v = kv.chunk(2, dim=1)
    return (k if attention.rotary is None else attention.rotary(k, positions)), v


def run_block(
    block: Block,
    x_BND: Tensor,
    positions: Positions,
    injected: tuple[Tensor, Tensor],
    keep: Tensor,
    source: Source | None,
) -> Tensor:
    """One layer over slots that see injected keys and each other."""

    def attention(h_BND: Tensor) -> Tensor:
        q, k, v = block.attention.project(h_BND, positions)
        k, v = torch.cat([injected[0], k], dim=2), torch.cat([injected[1], v], dim=2)
        return block.attention.merge(attend(q, k, v, keep=keep))

    return block.run(x_BND, attention, source)


def training_mask(slots: Slots, length: int) -> Tensor:
    """Which keys a slot sees: states before its anchor, and its own block up to itself."""
    before = torch.arange(length, device=slots.index_N.device) < slots.anchor_BN[..., None]
    index, block = slots.index_N, slots.block_N
    inside_NN = (block[:, None] == block) & (index[None, :] <= index[:, None])
    inside_BNN = inside_NN.expand(before.shape[0], -1, -1)
    return torch.cat([before, inside_BNN], dim=-1)[:, None]
