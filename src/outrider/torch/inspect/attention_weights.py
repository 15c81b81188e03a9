"""The weights an attention gives, read off its own reference.

    y = W v,  so  v = the unit vectors gives  y = W

Every attention is linear in its values, whatever its pattern, score or normaliser. So nothing has
to be written a second time: unit vectors go in as values, a few columns at a time because an
attention may count on values as wide as its queries, and the weights come out.
"""

import torch
from torch import Tensor

from outrider.torch.nn.attention import AttentionBase
from outrider.torch.nn.layer.heads import CrossAttention, Source

__all__ = ["cross_weights", "self_weights"]


@torch.no_grad()
def self_weights(
    attention: AttentionBase, q_BHTK: Tensor, k_BGTK: Tensor, *, keep_BT: Tensor | None = None
) -> Tensor:
    """Return the weight of every key for every query and head, [B, H, T, T], of a whole pass."""
    batch, groups, length, width = k_BGTK.shape
    unit_TT = torch.eye(length, dtype=k_BGTK.dtype, device=k_BGTK.device)
    columns = []
    for start in range(0, length, width):
        v_BGTK = torch.zeros_like(k_BGTK)
        part = unit_TT[:, start : start + width]
        v_BGTK[..., : part.shape[1]] = part.expand(batch, groups, -1, -1)
        columns.append(attention.reference(q_BHTK, k_BGTK, v_BGTK, keep_BT=keep_BT))
    return torch.cat(columns, dim=-1)[..., :length]


@torch.no_grad()
def cross_weights(cross: CrossAttention, x_BTD: Tensor, source: Source) -> Tensor:
    """Return the weight of every source token for every target token and head, [B, H, T, S]."""
    q_BHTK = cross.q(x_BTD).unflatten(-1, (cross.heads, cross.head_width)).transpose(1, 2)
    k_BHSK = source.k_BHSK
    unit_SS = torch.eye(k_BHSK.shape[2], dtype=k_BHSK.dtype, device=k_BHSK.device)
    return cross.attend(q_BHTK, source._replace(v_BHSK=unit_SS.expand(*k_BHSK.shape[:2], -1, -1)))
