"""Position encodings.

    sinusoidal   x_p + [sin(p f), cos(p f)]          f_k = 10000^(-2k/D)      (Vaswani et al., 2017)
    learned      x_p + E[p]                          positions up to the table's size
    rotary       q, k turned by the angle p f        scores depend on i - j   (Su et al., 2021)

The other kinds have files of their own. Positions are per row: in a ragged batch each row counts
its own tokens.
`Columns` is the base class of biases that are further columns of queries and keys.
"""

from typing import ClassVar, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from outrider.errors import InputError

__all__ = ["LearnedPosition", "Positions", "Rotary", "SineTable", "SinusoidalPosition"]

PART = 8192
"""Rows of a table that are computed in float64 at a time."""


class Positions(NamedTuple):
    """Positions of the tokens of a batch."""

    index_BT: Tensor
    """A single row if all rows are equal."""
    end: int
    """Upper bound of all positions, exclusive; on the host, so that no device is synchronised."""
    real: int | None = None
    """Upper bound of the positions of real tokens, if below `end`: the padding of shorter rows may
    exceed the last valid position."""

    @classmethod
    def upto(cls, length: int, device: torch.device) -> "Positions":
        """Return the positions of a whole pass, 0 to length - 1."""
        return cls(torch.arange(length, device=device)[None], length)


class SineTable:
    """Rows of sines and cosines, computed on demand and cached.

    Neither a parameter nor a buffer: it follows from its frequencies, is never stored, and is
    created on each device that uses it. Tables with equal frequencies are shared: a copy for every
    layer would take a gigabyte at 60,000 positions.
    """

    _tables: ClassVar["WeakValueDictionary[tuple[float, ...], SineTable]"] = WeakValueDictionary()
    frequencies: tuple[float, ...]
    _rows: dict[tuple[torch.device, torch.dtype], Tensor]

    def __new__(cls, width: int, frequencies: tuple[float, ...] | None = None) -> "SineTable":
        """Return the table of these frequencies, by default 10000^(-2k/D)."""
        frequencies = frequencies or tuple(10_000.0 ** (-k / width) for k in range(0, width, 2))
        table = cls._tables.get(frequencies)
        if table is None:
            table = super().__new__(cls)
            table.frequencies, table._rows = frequencies, {}
            table = cls._tables.setdefault(frequencies, table)
        return table

    def __reduce__(self) -> tuple[type["SineTable"], tuple[int, tuple[float, ...]]]:
        """Make copies and pickles of a module share the table."""
        return SineTable, (2 * len(self.frequencies), self.frequencies)

    def look_up(self, positions: Positions, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return (sin, cos) of every angle, [B, T, width / 2] each."""
        # Float64 only for float64 inputs: some devices do not support it.
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        rows = self._rows.get((like.device, dtype))
        if rows is None or len(rows) < positions.end:
            rows = self._rows[like.device, dtype] = self._compute(positions.end, like.device, dtype)
        sin, cos = rows[positions.index_BT].to(like.dtype).chunk(2, dim=-1)
        return sin, cos

    def _compute(self, end: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        length = max(512, 1 << (end - 1).bit_length())
        # A table created while decoding may be used by a later backward.
        with torch.inference_mode(False):
            # Angles in float64: float32 would lose three digits at position 64k.
            frequency = torch.tensor(self.frequencies, dtype=torch.float64, device="cpu")
            parts = []
            for start in range(0, length, PART):
                index = torch.arange(start, min(start + PART, length), device="cpu")
                angle = index.double()[:, None] * frequency
                parts.append(torch.cat([angle.sin(), angle.cos()], dim=1).to(dtype))
            return torch.cat(parts).to(device)


class SinusoidalPosition(nn.Module):
    """Sines in the first half of the width, cosines in the second, as in Marian."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = SineTable(width)

    def forward(self, x_BTD: Tensor, positions: Positions) -> Tensor:
        """Add the encoding of each position."""
        sin, cos = self.table.look_up(positions, x_BTD)
        return x_BTD + torch.cat([sin, cos], dim=-1)


class LearnedPosition(nn.Module):
    """A trained vector per position, up to the size of the table."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(positions, width)

    def forward(self, x_BTD: Tensor, positions: Positions) -> Tensor:
        """Add the vector of each position."""
        limit = self.table.num_embeddings
        real = positions.end if positions.real is None else positions.real
        if real > limit:
            raise InputError(f"{real} tokens are more than the {limit} positions of this model")
        index_BT = positions.index_BT
        if positions.end > limit:
            index_BT = index_BT.clamp(max=limit - 1)
        return x_BTD + self.table(index_BT)


class Rotary(nn.Module):
    """Rotates each pair (k, k + K/2) of a query or key by the angle of its position."""

    def __init__(self, width: int, frequencies: tuple[float, ...] | None = None) -> None:
        """Rotate heads of this width, by default with the frequencies above."""
        super().__init__()
        self.table = SineTable(width, frequencies)

    def forward(self, x_BHTK: Tensor, positions: Positions) -> Tensor:
        """Rotate queries or keys."""
        sin, cos = (part[:, None] for part in self.table.look_up(positions, x_BHTK))
        left, right = x_BHTK.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


class Columns(nn.Module):
    """A score bias a_i . b_j, a product of a vector per query and a vector per key.

    Attention divides by the root of the width it gets, K + E. So a_i is multiplied by that root;
    a variant that must be exact in low precision rounds only after the multiplication.
    """

    def __init__(self, extra: int, *, head_width: int) -> None:
        super().__init__()
        self.extra = extra
        """E: added columns."""
        self.root: float = (head_width + extra) ** 0.5

    def content(self, q_BHTK: Tensor) -> Tensor:
        """Return the queries to multiply with the keys themselves."""
        return q_BHTK

    def forward(
        self, q_BHTK: Tensor, k_BGTK: Tensor, positions: Positions
    ) -> tuple[Tensor, Tensor]:
        """Return `root` a_i of every query, [B, H, T, E], and b_j of every key, [B, G, T, E]."""
        raise NotImplementedError
