"""Segment memory (Transformer-XL, Dai et al., 2019, arXiv:1901.02860).

    layer n:    q = Q h        k, v = K, V [SG(m); h]        m = the last M inputs of layer n before

A long text is read segment by segment. Each layer keeps its inputs for the last M tokens, and the
queries of the next segment see them as well. No gradient flows into a memory (SG), so the cost of a
segment is independent of the text's length; the receptive field still grows by M tokens per layer.

If a document begins within a segment, its row forgets everything before.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack import Stack


class Memory(NamedTuple):
    """The memory of all layers and rows."""

    states_NBMD: Tensor
    """Inputs of each layer, oldest first."""
    known_B: Tensor
    """Number of a row's newest positions that belong to its document."""

    @classmethod
    def empty(cls, stack: Stack, rows: int, tokens: int) -> Self:
        """Return an empty memory for `tokens` positions."""
        weight = stack.blocks[0].attention.out.weight
        shape = (len(stack.blocks), rows, tokens, weight.shape[0])
        states = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        return cls(states, torch.zeros(rows, dtype=torch.long, device=weight.device))

    @property
    def tokens(self) -> int:
        """M: positions of the memory."""
        return self.states_NBMD.shape[2]


def run_segment(
    stack: Stack, x_BTD: Tensor, begins_BT: Tensor, memory: Memory
) -> tuple[Tensor, Memory]:
    """Run the next segment of every row; `begins_BT` marks tokens that begin a document."""
    places, tokens = memory.tokens, x_BTD.shape[1]
    positions = Positions.upto(places + tokens, x_BTD.device)
    keep_B1TS = _visible(begins_BT, memory)
    states = []
    for block, old_BMD in zip(stack.blocks, memory.states_NBMD, strict=True):
        both_BSD = torch.cat([old_BMD.to(x_BTD.dtype), x_BTD.detach()], dim=1)
        states.append(both_BSD[:, both_BSD.shape[1] - places :])
        x_BTD = _run_block(block, x_BTD, both_BSD[:, :places], positions, keep_B1TS)
    if stack.norm is not None:
        x_BTD = stack.norm(x_BTD)
    return x_BTD, Memory(torch.stack(states), _known(begins_BT, memory))


def _run_block(
    block: Block, x_BTD: Tensor, old_BMD: Tensor, positions: Positions, keep_B1TS: Tensor
) -> Tensor:
    """Run one layer whose queries also see the memory."""
    attention, residual = block.attention, block.attention_residual

    def attend_with_memory(h_BTD: Tensor) -> Tensor:
        q, k, v = attention.project(torch.cat([residual.enter(old_BMD), h_BTD], dim=1), positions)
        q = q[:, :, old_BMD.shape[1] :]
        out = attend(q, k, v, keep=keep_B1TS, dropout=attention.attention.active_dropout)
        return attention.merge(out, h_BTD)

    return block.run(x_BTD, attend_with_memory, None)


def _visible(begins_BT: Tensor, memory: Memory) -> Tensor:
    """Return the mask of the own document, in the memory and up to the query; [B, 1, T, M + T]."""
    tokens, places = begins_BT.shape[1], memory.tokens
    document_BT = begins_BT.cumsum(1)
    place_M = torch.arange(places, 0, -1, device=begins_BT.device)
    old_BM = place_M <= memory.known_B[:, None]
    old_BTM = old_BM[:, None, :] & (document_BT == 0)[:, :, None]
    triangle_TT = torch.ones(tokens, tokens, dtype=torch.bool, device=begins_BT.device).tril()
    new_BTT = (document_BT[:, :, None] == document_BT[:, None, :]) & triangle_TT
    return torch.cat([old_BTM, new_BTT], dim=2)[:, None]


def _known(begins_BT: Tensor, memory: Memory) -> Tensor:
    """Count the tokens of each row's current document within the memory."""
    tokens = begins_BT.shape[1]
    index_T = torch.arange(tokens, device=begins_BT.device)
    last_B = torch.where(begins_BT, index_T, -1).max(dim=1).values
    count_B = torch.where(last_B < 0, memory.known_B + tokens, tokens - last_B)
    return count_B.clamp(max=memory.tokens)
