"""Ring buffers of the newest vectors of every row.

Rows are ragged and can be rolled back, as in `nn.cache`. A ring has `slack` more slots than it
needs, so that the vectors overwritten by one extend are never needed again, even after a rollback.
"""

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from outrider.torch.nn.cache import SLACK, Cache, Step, join_rows


class Ring:
    """Vector p of a row is in slot p mod C of [B, C, D]."""

    def __init__(
        self,
        rows: int,
        capacity: int,
        *,
        back: int,
        like: Tensor,
        slack: int = SLACK,
    ) -> None:
        """Create an empty ring from which the last `back` vectors can be read.

        The last dimension of `like` is the width of a vector.
        """
        self.back = back
        size = min(capacity, back + slack)
        self.wraps = size < capacity
        self.x_BCD = like.new_zeros(rows, size, like.shape[-1])

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.x_BCD.nbytes

    def extend(self, x_BTD: Tensor, step: Step) -> Tensor:
        """Store new vectors; return the `back` vectors before them and these, [B, back + T, D].

        Vectors before the start of a row are zero.
        """
        before_BWD = self._before(x_BTD, step)
        self._write(x_BTD, step)
        return torch.cat([before_BWD, x_BTD], dim=1)

    def select(self, row_N: Tensor) -> None:
        """Reorder, drop or copy rows."""
        self.x_BCD = self.x_BCD.index_select(0, row_N)

    def emptied(self, rows: int) -> Self:
        """Return an empty ring of the same size for `rows` rows."""
        other = copy(self)
        other.x_BCD = self.x_BCD.new_zeros(rows, *self.x_BCD.shape[1:])
        return other

    def join(self, other: Self, place_N: Tensor, rows: int) -> None:
        """Write the rows of another ring to these indices; sizes may differ if neither wraps."""
        self.x_BCD = join_rows(self.x_BCD, other.x_BCD, place_N, rows)
        self.wraps = self.wraps or other.wraps

    def _before(self, x_BTD: Tensor, step: Step) -> Tensor:
        rows, _, width = x_BTD.shape
        if step.fresh:
            return x_BTD.new_zeros(rows, self.back, width)
        first_B1 = step.positions.index_BT[:, :1]
        place_BW1 = (first_B1 + torch.arange(-self.back, 0, device=x_BTD.device))[..., None]
        slot_BWD = (place_BW1 % self.x_BCD.shape[1]).expand(rows, -1, width)
        return self.x_BCD.gather(1, slot_BWD).masked_fill(place_BW1 < 0, 0)

    def _write(self, x_BTD: Tensor, step: Step) -> None:
        rows, tokens, width = x_BTD.shape
        size = self.x_BCD.shape[1]
        if tokens > size:  # a first pass: only the newest tokens of each row are stored
            newest_BC1 = step.newest(size).clamp(min=0)[..., None]
            self.x_BCD.copy_(x_BTD.gather(1, newest_BC1.expand(rows, -1, width)))
            return
        slot_BT1 = (step.positions.index_BT % size)[..., None]
        self.x_BCD.scatter_(1, slot_BT1.expand(rows, -1, width), x_BTD)


class RingedCache:
    """The cache of a layer, and rings for parts that read a few earlier tokens."""

    def __init__(self, inner: Cache, rings: Sequence[Ring]) -> None:
        self.inner = inner
        self.rings = list(rings)

    @property
    def wraps(self) -> bool:
        """Whether old tokens are overwritten."""
        return self.inner.wraps or any(ring.wraps for ring in self.rings)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.inner.nbytes + sum(ring.nbytes for ring in self.rings)

    def select(self, row_N: Tensor, used: int) -> None:
        """Reorder, drop or copy rows."""
        self.inner.select(row_N, used)
        for ring in self.rings:
            ring.select(row_N)

    def join(self, other: Self, place_N: Tensor, rows: int) -> None:
        """Write the rows of another cache to these indices."""
        self.inner.join(other.inner, place_N, rows)
        for ours, theirs in zip(self.rings, other.rings, strict=True):
            ours.join(theirs, place_N, rows)
