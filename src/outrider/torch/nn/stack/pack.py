"""Packing: a layer runs on the tokens that take part, and on no others.

    gather    [B, T, ...] -> [B, A, ...]      the active tokens of each row, in order
    scatter   [B, A, ...] -> [B, T, ...]      put back; the others keep what they had

A is the most that any row has. A row with fewer is filled up with tokens of its own that do not
take part: they are computed in vain and never put back. So a packed row is like a padded one, real
tokens first.
"""

import torch
from torch import Tensor

from outrider.torch.nn.position import Positions

__all__ = ["Pack"]


class Pack:
    """Which tokens of every row are packed, and where they stand."""

    def __init__(self, place_BA: Tensor, real_BA: Tensor | None, length: int) -> None:
        self.place_BA = place_BA
        """Where each packed token stands in its row."""
        self.real_BA = real_BA
        """Whether it takes part; None where all do."""
        self.length = length
        """Tokens of a row that is not packed, T."""
        self._flat_M: Tensor | None = None
        self._real_N: Tensor | None = None

    @classmethod
    def of(cls, active_BT: Tensor, *, shrink: bool = True) -> "Pack":
        """Pack the active tokens; without `shrink` all places stay, and `real_BA` alone tells."""
        rows, length = active_BT.shape
        index_BT = torch.arange(length, device=active_BT.device).expand(rows, -1)
        count_B = active_BT.sum(1)
        # The one question to the device: without the answer nothing can be packed.
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
        """Leave out nothing."""
        rows, length = x_BTD.shape[:2]
        index_BT = torch.arange(length, device=x_BTD.device).expand(rows, -1)
        return cls(index_BT, None, length)

    @property
    def tokens(self) -> int:
        """Places of a packed row, A; 0 where nothing takes part."""
        return self.place_BA.shape[1]

    @property
    def whole(self) -> bool:
        """No place is left out, so gathering changes nothing."""
        return self.tokens == self.length

    @property
    def active_BA(self) -> Tensor:
        """Which places take part, also where all do."""
        if self.real_BA is None:
            return torch.ones_like(self.place_BA, dtype=torch.bool)
        return self.real_BA

    def through(self, inner: "Pack") -> "Pack":
        """Return what `inner` makes of packed rows, as places of rows that are not packed."""
        return Pack(inner.gather(self.place_BA), inner.real_BA, self.length)

    def positions(self, positions: Positions) -> Positions:
        """Return where the packed tokens stand."""
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
        """Return `into_BT` with something added to the packed tokens."""
        if self.whole and self.real_BA is None:
            return into_BT + y_BA
        flat_N, y_N = self._put_back(y_BA)
        return into_BT.flatten(0, 1).index_add(0, flat_N, y_N).view_as(into_BT)

    def _put_back(self, y_BA: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens that take part, and their places in all rows written as one."""
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
