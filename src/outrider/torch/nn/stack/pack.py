"""Packing: run a layer on the active tokens only.

    gather    [B, T, ...] -> [B, A, ...]      the active tokens of each row, in order
    scatter   [B, A, ...] -> [B, T, ...]      write back; other tokens are unchanged

A is the largest number of active tokens of a row. Other rows are filled with inactive tokens of
their own, whose results are discarded. So a packed row is like a right-padded one.
"""

import torch
from torch import Tensor

from outrider.torch.nn.position import Positions


class Pack:
    """The packed tokens of every row."""

    def __init__(self, place_BA: Tensor, real_BA: Tensor | None, length: int) -> None:
        self.place_BA = place_BA
        """Index of each packed token in its row."""
        self.real_BA = real_BA
        """Whether it is active; None if all are."""
        self.length = length
        """T: tokens of an unpacked row."""
        self._flat_M: Tensor | None = None
        self._real_N: Tensor | None = None

    @classmethod
    def of(cls, active_BT: Tensor, *, shrink: bool = True) -> "Pack":
        """Pack the active tokens; without `shrink` all tokens stay, and only `real_BA` is set."""
        rows, length = active_BT.shape
        index_BT = torch.arange(length, device=active_BT.device).expand(rows, -1)
        count_B = active_BT.sum(1)
        # The only device synchronisation.
        least, most = torch.stack(torch.aminmax(count_B)).tolist()
        tokens = most if shrink or not most else length
        if tokens == length:
            return cls(index_BT, None if least == length else active_BT, length)
        others_BT = (~active_BT).cumsum(1) + count_B[:, None]
        rank_BT = torch.where(active_BT, active_BT.cumsum(1), others_BT) - 1
        place_BT = torch.empty_like(rank_BT).scatter_(1, rank_BT, index_BT)
        real_BA = None
        if least < tokens:
            real_BA = torch.arange(tokens, device=active_BT.device) < count_B[:, None]
        return cls(place_BT[:, :tokens], real_BA, length)

    @classmethod
    def all(cls, x_BTD: Tensor) -> "Pack":
        """Pack all tokens."""
        rows, length = x_BTD.shape[:2]
        index_BT = torch.arange(length, device=x_BTD.device).expand(rows, -1)
        return cls(index_BT, None, length)

    @property
    def tokens(self) -> int:
        """A: tokens of a packed row; 0 if none is active."""
        return self.place_BA.shape[1]

    @property
    def whole(self) -> bool:
        """Whether all tokens are packed, so that gathering is the identity."""
        return self.tokens == self.length

    @property
    def active_BA(self) -> Tensor:
        """Mask of the active tokens."""
        if self.real_BA is None:
            return torch.ones_like(self.place_BA, dtype=torch.bool)
        return self.real_BA

    def through(self, inner: "Pack") -> "Pack":
        """Return the composition: `inner` packs rows that this one has packed."""
        return Pack(inner.gather(self.place_BA), inner.real_BA, self.length)

    def positions(self, positions: Positions) -> Positions:
        """Return the positions of the packed tokens."""
        if self.whole:
            return positions
        index_BT = positions.index_BT.expand(len(self.place_BA), -1)
        return Positions(self.gather(index_BT), positions.end)

    def gather(self, x_BT: Tensor) -> Tensor:
        """Pack the rows of `x_BT`, [B, T, ...]."""
        if self.whole:
            return x_BT
        return (
            x_BT.flatten(0, 1)
            .index_select(0, self._flat)
            .view(*self.place_BA.shape, *x_BT.shape[2:])
        )

    def scatter(self, into_BT: Tensor, y_BA: Tensor) -> Tensor:
        """Return `into_BT` with the packed tokens replaced."""
        if self.whole:
            if self.real_BA is None:
                return y_BA
            real = self.real_BA.view(*self.real_BA.shape, *[1] * (y_BA.dim() - 2))
            return torch.where(real, y_BA, into_BT)
        flat_N, y_N = self._put_back(y_BA)
        return into_BT.flatten(0, 1).index_copy(0, flat_N, y_N).view_as(into_BT)

    def add(self, into_BT: Tensor, y_BA: Tensor) -> Tensor:
        """Return `into_BT` with `y_BA` added to the packed tokens."""
        if self.whole and self.real_BA is None:
            return into_BT + y_BA
        flat_N, y_N = self._put_back(y_BA)
        return into_BT.flatten(0, 1).index_add(0, flat_N, y_N).view_as(into_BT)

    def _put_back(self, y_BA: Tensor) -> tuple[Tensor, Tensor]:
        """Return flat indices and values of the active tokens."""
        flat_M, y_M = self._flat, y_BA.flatten(0, 1)
        if self.real_BA is None:
            return flat_M, y_M
        if self._real_N is None:
            self._real_N = self.real_BA.flatten().nonzero()[:, 0]
        return flat_M[self._real_N], y_M.index_select(0, self._real_N)

    @property
    def _flat(self) -> Tensor:
        if self._flat_M is None:
            first_B1 = torch.arange(len(self.place_BA), device=self.place_BA.device)[:, None]
            self._flat_M = (self.place_BA + first_B1 * self.length).flatten()
        return self._flat_M
