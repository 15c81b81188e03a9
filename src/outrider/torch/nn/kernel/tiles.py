"""Tiles: sets of queries and keys as strided ranges of positions.

    start + set * step + run * jump + place        a set of runs of places, several sets

Such a range is a view of the data: overlapping blocks are sets of one run, every l-th token is a
set of runs of one place, the last c tokens of every block are runs of c.
`outrider.torch.nn.kernel.merge` computes attention over tiles.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class StridedRange(NamedTuple):
    """Positions of queries or keys."""

    start: int
    sets: int = 1
    step: int = 0
    runs: int = 1
    jump: int = 0
    length: int = 1

    @property
    def size(self) -> int:
        """Positions of one set."""
        return self.runs * self.length

    def positions(self, device: torch.device | None = None) -> Tensor:
        """Return all positions, [sets, size]."""
        set_S = torch.arange(self.sets, device=device) * self.step
        run_R = torch.arange(self.runs, device=device) * self.jump
        place_L = torch.arange(self.length, device=device)
        inside_P = (run_R[:, None] + place_L).flatten()
        return self.start + set_S[:, None] + inside_P

    def cut(self, first: int, sets: int) -> "StridedRange":
        """Return `sets` of the sets, from set `first` on."""
        return self._replace(start=self.start + first * self.step, sets=sets)

    def view(self, x_HTK: Tensor) -> Tensor:
        """View one row through this range: [H, sets, runs, length, K]."""
        heads, _, width = x_HTK.shape
        head, token, number = x_HTK.stride()
        return x_HTK[:, self.start :].as_strided(
            (heads, self.sets, self.runs, self.length, width),
            (head, self.step * token, self.jump * token, token, number),
        )

    def read(self, x_HTK: Tensor) -> Tensor:
        """Return the vectors in this range, [H, sets, size, K]; copies only if runs have gaps."""
        return self.view(x_HTK).flatten(2, 3)

    def add(self, x_HTK: Tensor, more_HSPK: Tensor) -> None:
        """Add to the vectors in this range; sets may overlap."""
        heads, _, _, width = more_HSPK.shape
        more = more_HSPK.reshape(heads, self.sets, self.runs, self.length, width)
        apart = self.length if self.sets == 1 else min(self.step, self.length)
        for first in range(0, self.length, apart):
            places = min(apart, self.length - first)
            piece = self._replace(start=self.start + first, length=places)
            piece.view(x_HTK).add_(more[:, :, :, first : first + places])


class Tile(NamedTuple):
    """Queries and the keys they see, set by set."""

    queries: StridedRange
    keys: StridedRange
    keep: Tensor | None = None
    """Pairs of a set that are in the pattern, [queries, keys]; None for all."""
    causal: bool = False
    """Query t of a set sees its keys up to t."""
    more: bool = False
    """An earlier tile contains these queries; this one adds keys."""


def block_tiles(
    length: int,
    size: int,
    *,
    head: int = 0,
    before: int = 0,
    after: int = 0,
    sees: Callable[[Tensor, Tensor], Tensor] | None = None,
    causal: bool = False,
    device: torch.device | None = None,
) -> list[Tile]:
    """Cut queries into blocks of `size` with the keys around them, restricted by `sees`.

    A block has keys from `before` before it to `after` behind it. All blocks whose keys exist form
    one tile; blocks at the ends are separate tiles. The first `head` queries, which see exactly
    their past, form one causal tile.
    """
    head = min(head, length)
    past = StridedRange(0, length=head)
    tiles = [Tile(past, past, causal=True)] if head else []
    first = -(-max(0, before - head) // size)
    inner = max(0, (length - after - head) // size - first)
    ranges = []
    for block in [*range(first), *range(first + inner, -(-(length - head) // size))]:
        start = head + block * size
        end = min(length, start + size)
        if start < length:
            low, high = max(0, start - before), min(length, end + after)
            ranges.append(
                (StridedRange(start, length=end - start), StridedRange(low, length=high - low))
            )
    if inner:
        start, span = head + first * size, before + size + after
        keys = StridedRange(start - before, inner, size, length=span)
        ranges.append((StridedRange(start, inner, size, length=size), keys))
    for queries, keys in ranges:
        i = queries.cut(0, 1).positions(device)[0]
        j = keys.cut(0, 1).positions(device)[0]
        keep = None if sees is None else sees(i[:, None], j[None, :])
        tiles.append(Tile(queries, keys, keep, causal))
    return tiles
