"""What the patterns that are cut into tiles share: which way they are computed.

    nothing left out          one dense pass without a mask, whatever the length
    short, or most is seen    one dense pass under a mask
    otherwise                 tiles (`outrider.torch.nn.kernel.merge`)

On a CPU tiles overtake the masked pass at about 480 tokens; a little later, where a pattern leaves
most pairs out, also a causal pass without a mask (measured: 4 heads of 64, one to eight rows,
windows of 16 to 1024, strides of sqrt(T) to 200).
"""

import torch
from torch import Tensor

from outrider.torch.nn.attention.base import AttentionBase
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.kernel.merge import attend_tiles
from outrider.torch.nn.kernel.tiles import Tile

__all__ = ["TiledAttention", "block_of"]

DENSE_UP_TO = 480
"""Longest sequence that never takes tiles."""
SHARE, SHARE_UP_TO = 0.5, 2048
"""Sequences of up to 2048 tokens take tiles where at most this share of all pairs is seen."""
BLOCK = 64
"""Fewest queries of a block: smaller ones starve the matrix products."""


def block_of(window: int) -> int:
    """Queries per block of a band: few keys too many, and few blocks."""
    return max(BLOCK, window // 2)


class TiledAttention(AttentionBase):
    """An attention over positions that says how its pattern falls into tiles."""

    _keep_TT: Tensor | None = None
    _plan: tuple[int, torch.device, list[Tile]] | None = None

    def tiles(self, length: int, device: torch.device) -> list[Tile]:
        """Cut the pattern of `length` tokens into tiles that share no pair."""
        raise NotImplementedError

    def complete(self, length: int) -> bool:
        """Whether `length` tokens all see each other (where causal: all their past)."""
        raise NotImplementedError

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Tiles where they pay, one dense pass otherwise."""
        length, device = q_BHTK.shape[2], q_BHTK.device
        dropout = self.active_dropout
        if self.causal:
            keep_BT = None  # right padding lies ahead of every real query
        if self.complete(length):
            keep = None if keep_BT is None else keep_BT[:, None, None, :]
            causal = self.causal
            return attend(q_BHTK, k_BGTK, v_BGTK, keep=keep, causal=causal, dropout=dropout)
        if not self._tiles_pay(length):
            keep = self._dense_keep(length, device)
            if keep_BT is not None:
                keep = keep & keep_BT[:, None, None, :]
            return attend(q_BHTK, k_BGTK, v_BGTK, keep=keep, dropout=dropout)
        return attend_tiles(
            q_BHTK,
            k_BGTK,
            v_BGTK,
            lambda n: self._last_tiles(n, device),
            keep_BT=keep_BT,
            dropout=dropout,
        )

    def _tiles_pay(self, length: int) -> bool:
        if length <= DENSE_UP_TO:
            return False
        return length > SHARE_UP_TO or self.cost(length).pairs <= SHARE * length**2

    def _dense_keep(self, length: int, device: torch.device) -> Tensor:
        """The mask of a short sequence is the corner of the mask of a longer one."""
        keep_TT = self._keep_TT
        if keep_TT is None or keep_TT.device != device or len(keep_TT) < length:
            size = max(256, 1 << (length - 1).bit_length())
            # A mask made while decoding must still serve a later backward.
            with torch.inference_mode(False):
                at_T = torch.arange(size, device=device)
                keep_TT = self._keep_TT = self.sees(at_T[:, None], at_T[None, :])
        return keep_TT[:length, :length]

    def _last_tiles(self, length: int, device: torch.device) -> list[Tile]:
        """Batches of one length often follow each other: their tiles are made once."""
        if torch.compiler.is_compiling():
            return self.tiles(length, device)
        if self._plan is None or self._plan[:2] != (length, device):
            with torch.inference_mode(False):
                self._plan = length, device, self.tiles(length, device)
        return self._plan[2]
