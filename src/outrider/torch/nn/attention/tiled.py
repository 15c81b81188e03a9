"""Base class of patterns that are cut into tiles. It selects the way of computing:

    all pairs visible         one dense pass without a mask
    short, or most visible    one dense pass under a mask
    otherwise                 tiles (`outrider.torch.nn.kernel.merge`)

On a CPU tiles are faster than the masked pass from about 480 tokens on, and than a causal pass
without a mask a little later, if a pattern excludes most pairs (measured with 4 heads of 64, one to
eight rows, windows of 16 to 1024, strides of sqrt(T) to 200).
"""

import torch
from torch import Tensor

from outrider.torch.nn.attention.base import AttentionBase
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.kernel.merge import attend_tiles
from outrider.torch.nn.kernel.tiles import Tile

DENSE_UP_TO = 480
"""Longest sequence that never uses tiles."""
SHARE, SHARE_UP_TO = 0.5, 2048
"""Sequences of up to 2048 tokens use tiles if at most this share of all pairs is visible."""
BLOCK = 64
"""Minimum queries of a block, for efficient matrix products."""


def block_of(window: int) -> int:
    """Return the queries per block of a band: few unused keys, and few blocks."""
    return max(BLOCK, window // 2)


class TiledAttention(AttentionBase):
    """A positional attention with a tiling of its pattern."""

    _keep_TT: Tensor | None = None
    _plan: tuple[int, torch.device, list[Tile]] | None = None

    def tiles(self, length: int, device: torch.device) -> list[Tile]:
        """Cut the pattern of `length` tokens into tiles that share no pair."""
        raise NotImplementedError

    def complete(self, length: int) -> bool:
        """Return whether all `length` tokens see each other (if causal: all earlier ones)."""
        raise NotImplementedError

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Attend by tiles if that is faster, else in one dense pass."""
        length, device = q_BHTK.shape[2], q_BHTK.device
        dropout = self.active_dropout
        if self.causal:
            keep_BT = None  # right padding is behind every real query
        if self.complete(length):
            keep = None if keep_BT is None else keep_BT[:, None, None, :]
            causal = self.causal
            return attend(q_BHTK, k_BGTK, v_BGTK, keep=keep, causal=causal, dropout=dropout)
        if not self._use_tiles(length):
            keep = self._dense_keep(length, device)
            if keep_BT is not None:
                keep = keep & keep_BT[:, None, None, :]
            return attend(q_BHTK, k_BGTK, v_BGTK, keep=keep, dropout=dropout)
        return attend_tiles(
            q_BHTK,
            k_BGTK,
            v_BGTK,
            lambda n: self._cached_tiles(n, device),
            keep_BT=keep_BT,
            dropout=dropout,
        )

    def _use_tiles(self, length: int) -> bool:
        if length <= DENSE_UP_TO:
            return False
        return length > SHARE_UP_TO or self.cost(length).pairs <= SHARE * length**2

    def _dense_keep(self, length: int, device: torch.device) -> Tensor:
        """Return the mask; a shorter sequence uses the corner of a cached one."""
        keep_TT = self._keep_TT
        if keep_TT is None or keep_TT.device != device or len(keep_TT) < length:
            size = max(256, 1 << (length - 1).bit_length())
            # A mask created while decoding may be used by a later backward.
            with torch.inference_mode(False):
                at_T = torch.arange(size, device=device)
                keep_TT = self._keep_TT = self.sees(at_T[:, None], at_T[None, :])
        return keep_TT[:length, :length]

    def _cached_tiles(self, length: int, device: torch.device) -> list[Tile]:
        """Return the tiles, cached because consecutive batches often have one length."""
        if torch.compiler.is_compiling():
            return self.tiles(length, device)
        if self._plan is None or self._plan[:2] != (length, device):
            with torch.inference_mode(False):
                self._plan = length, device, self.tiles(length, device)
        return self._plan[2]
