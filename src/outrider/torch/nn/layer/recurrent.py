"""Recurrent layers: a GRU where self-attention stands, an LSTM along the slots of a block, either
of them both ways over a source.

    gru    r_t = s(W_r x_t + U_r h_(t-1))    z_t = s(W_z x_t + U_z h_(t-1))      h before all is 0
           n_t = tanh(W_n x_t + r_t * (U_n h_(t-1)))
           h_t = (1 - z_t) * n_t + z_t * h_(t-1)                                 y_t = A h_t

    lstm   i_t, f_t, o_t = s(W x_t + U h_(t-1))       g_t = tanh(W_g x_t + U_g h_(t-1))
           c_t = f_t * c_(t-1) + i_t * g_t            h_t = o_t * tanh(c_t)      y_t = A h_t

(Every product has a bias.) What a GRU remembers of a text is one vector, so decoding keeps a
constant number of them per row: as many as the last extend can be rolled back by. The LSTM is
started anew for every block, from a vector c: its cell is c, its first state tanh(c). Over a source
one runs forwards and one backwards (Schuster and Paliwal, 1997), and y_t = A [h_t, h'_t].
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from outrider.torch.nn.cache import SLACK, Cache, Step
from outrider.torch.nn.cache.ring import Ring
from outrider.torch.nn.linear import Linear
from outrider.torch.nn.position import Positions

__all__ = ["BothWays", "Gru", "SlotLstm", "StateRing"]


class StateRing(Ring):
    """The state of every row after each of its newest tokens: a cache that does not grow."""

    def newest(self, x_BTD: Tensor, step: Step) -> Tensor:
        """Return the state before the tokens `x_BTD` of a step, [B, D]; zeros before the first."""
        return self._before(x_BTD, step)[:, 0]

    def remember(self, h_BTD: Tensor, step: Step) -> None:
        """Keep the states after the tokens of a step."""
        self._write(h_BTD, step)

    def select(self, row_N: Tensor, used: int = 0) -> None:
        """Reorder, drop or copy rows; how much of a ring is `used` does not matter."""
        super().select(row_N)


class Gru(nn.Module):
    """Tokens of one sequence know those before them by a state; see `nn.heads.SelfAttention`."""

    def __init__(self, width: int, *, flags: int = 0) -> None:
        """Build it; its cell may read `flags` numbers more than a token is wide."""
        super().__init__()
        self.gru = nn.GRU(width + flags, width, batch_first=True)
        self.out = Linear(width, width)

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """One whole pass. Order is all a state needs, and padding on the right comes too late."""
        return self.out(self._run(x_BTD, x_BTD.new_zeros(x_BTD.shape[0], x_BTD.shape[2])))

    def extend(self, x_BTD: Tensor, cache: Cache, step: Step) -> Tensor:
        """Go on from the states that the cache holds."""
        assert isinstance(cache, StateRing), "the cache of another layer"
        h_BTD = self._run(x_BTD, cache.newest(x_BTD, step))
        cache.remember(h_BTD, step)
        return self.out(h_BTD)

    def new_cache(self, rows: int, capacity: int, slack: int = SLACK) -> StateRing:
        """Return room for the newest states, whatever the `capacity`."""
        return StateRing(rows, capacity, back=1, like=self.out.weight, slack=slack)

    def _run(self, x_BTD: Tensor, before_BD: Tensor) -> Tensor:
        dtype = self.out.weight.dtype
        # Errors add up along a text, so the recurrence runs in the precision of its weights.
        with torch.autocast(x_BTD.device.type, enabled=False):
            h_BTD, _ = self.gru(x_BTD.to(dtype), before_BD.to(dtype)[None])
        return h_BTD


class BothWays(nn.Module):
    """Tokens of a source know those before and behind them by two states."""

    def __init__(self, width: int, *, core: str, flags: int = 0) -> None:
        """Build them; their cells may read `flags` numbers more than a token is wide."""
        super().__init__()
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[core]
        self.states: nn.RNNBase = kind(width + flags, width, batch_first=True, bidirectional=True)
        self.out = Linear(2 * width, width)

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """One whole pass; `keep_BT` marks what is no padding, which stands on the right."""
        x_BTD = x_BTD.to(self.out.weight.dtype)
        with torch.autocast(x_BTD.device.type, enabled=False):
            if keep_BT is None:
                h_BTE, _ = self.states(x_BTD)
                return self.out(h_BTE)
            # The way back begins at the end of each row, not in its padding.
            length_B = keep_BT.sum(1).clamp(min=1).cpu()
            packed = pack_padded_sequence(x_BTD, length_B, batch_first=True, enforce_sorted=False)
            h_BTE, _ = pad_packed_sequence(
                self.states(packed)[0], batch_first=True, total_length=x_BTD.shape[1]
            )
        return self.out(h_BTE)


class SlotLstm(nn.Module):
    """The slots of a block know those before them, and nothing of the block before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = Linear(width, width)

    def forward(self, x_BKD: Tensor, first_BD: Tensor) -> Tensor:
        """Run one block per row, from the vectors `first_BD`."""
        dtype = self.out.weight.dtype
        cell_1BD = first_BD.to(dtype)[None]
        with torch.autocast(x_BKD.device.type, enabled=False):
            h_BKD, _ = self.lstm(x_BKD.to(dtype), (cell_1BD.tanh(), cell_1BD))
        return self.out(h_BKD)

    def run_blocks(self, x_BND: Tensor, first_BND: Tensor, sizes: Sequence[int]) -> Tensor:
        """Run several blocks a row that lie side by side; those of one size run together.

        `first_BND` is read at the first slot of each block.
        """
        runs = [(size, len(list(blocks))) for size, blocks in groupby(sizes)]
        widths = [size * count for size, count in runs]
        parts = (torch.split(whole, widths, dim=1) for whole in (x_BND, first_BND))
        given = zip(*parts, runs, strict=True)
        return torch.cat([self._run_equal(x, first, size) for x, first, (size, _) in given], dim=1)

    def _run_equal(self, x_BND: Tensor, first_BND: Tensor, size: int) -> Tensor:
        x_MKD = x_BND.reshape(-1, size, x_BND.shape[2])
        first_MD = first_BND[:, ::size].reshape(-1, first_BND.shape[2])
        return self(x_MKD, first_MD).view_as(x_BND)
