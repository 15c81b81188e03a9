"""Recurrent layers: a GRU or SSRU in place of self-attention, an LSTM along the slots of a block,
and bidirectional versions for encoders.

    gru    r_t = s(W_r x_t + U_r h_(t-1))    z_t = s(W_z x_t + U_z h_(t-1))      h before all is 0
           n_t = tanh(W_n x_t + r_t * (U_n h_(t-1)))
           h_t = (1 - z_t) * n_t + z_t * h_(t-1)                                 y_t = A h_t

    lstm   i_t, f_t, o_t = s(W x_t + U h_(t-1))       g_t = tanh(W_g x_t + U_g h_(t-1))
           c_t = f_t * c_(t-1) + i_t * g_t            h_t = o_t * tanh(c_t)      y_t = A h_t

(Every product has a bias.) The state of a GRU is one vector, so decoding keeps a constant number of
vectors per row: as many as the last extend can be rolled back by. The LSTM restarts at every block
from a vector c: its cell is c, its first state tanh(c). In an encoder one direction runs forwards
and one backwards (Schuster and Paliwal, 1997), and y_t = A [h_t, h'_t].

The SSRU is the simpler simple recurrent unit (Kim et al., 2019, D19-5632):

    f_t = s(W_f x_t + b_f)      c_t = f_t * c_(t-1) + (1 - f_t) * (W x_t + b)      y_t = relu(c_t)

The initial c is 0, s the logistic function. Marian's SSRU has no b. No product depends on a state:
those of a block run at once, and only the elementwise sum is sequential.
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


class StateRing(Ring):
    """The states of every row after its newest tokens: a cache of constant size."""

    def newest(self, x_BTD: Tensor, step: Step) -> Tensor:
        """Return the state before the tokens of a step, [B, D]; zeros before the first."""
        return self._before(x_BTD, step)[:, 0]

    def store(self, h_BTD: Tensor, step: Step) -> None:
        """Store the states after the tokens of a step."""
        self._write(h_BTD, step)

    def select(self, row_N: Tensor, used: int = 0) -> None:
        """Reorder, drop or copy rows."""
        super().select(row_N)


class Gru(nn.Module):
    """A GRU over the tokens of a sequence; same interface as `nn.layer.heads.SelfAttention`."""

    def __init__(self, width: int, *, flags: int = 0) -> None:
        """Build the layer; `flags` is the number of extra inputs of its cell."""
        super().__init__()
        self.gru = nn.GRU(width + flags, width, batch_first=True)
        self.out = Linear(width, width)

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """Run a whole pass; positions and right padding have no effect."""
        return self.out(self._run(x_BTD, x_BTD.new_zeros(x_BTD.shape[0], x_BTD.shape[2])))

    def extend(self, x_BTD: Tensor, cache: Cache, step: Step) -> Tensor:
        """Continue from the cached states."""
        assert isinstance(cache, StateRing), "the cache of another layer"
        h_BTD = self._run(x_BTD, cache.newest(x_BTD, step))
        cache.store(h_BTD, step)
        return self.out(h_BTD)

    def new_cache(self, rows: int, capacity: int, slack: int = SLACK) -> StateRing:
        """Return an empty cache, of constant size."""
        return StateRing(rows, capacity, back=1, like=self.out.weight, slack=slack)

    def _run(self, x_BTD: Tensor, before_BD: Tensor) -> Tensor:
        dtype = self.out.weight.dtype
        # Errors accumulate along a text, so the recurrence runs in the precision of its weights.
        with torch.autocast(x_BTD.device.type, enabled=False):
            h_BTD, _ = self.gru(x_BTD.to(dtype), before_BD.to(dtype)[None])
        return h_BTD


class BothWays(nn.Module):
    """A bidirectional GRU or LSTM over a source."""

    def __init__(self, width: int, *, core: str, flags: int = 0) -> None:
        """Build the layer; `flags` is the number of extra inputs of its cells."""
        super().__init__()
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[core]
        self.states: nn.RNNBase = kind(width + flags, width, batch_first=True, bidirectional=True)
        self.out = Linear(2 * width, width)

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """Run a whole pass; `keep_BT` marks real tokens (right-padded rows)."""
        x_BTD = x_BTD.to(self.out.weight.dtype)
        with torch.autocast(x_BTD.device.type, enabled=False):
            if keep_BT is None:
                h_BTE, _ = self.states(x_BTD)
                return self.out(h_BTE)
            # The backward direction starts at the end of each row, not in its padding.
            length_B = keep_BT.sum(1).clamp(min=1).cpu()
            packed = pack_padded_sequence(x_BTD, length_B, batch_first=True, enforce_sorted=False)
            h_BTE, _ = pad_packed_sequence(
                self.states(packed)[0], batch_first=True, total_length=x_BTD.shape[1]
            )
        return self.out(h_BTE)


class SlotLstm(nn.Module):
    """An LSTM along the slots of a block; blocks are independent."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = Linear(width, width)

    def forward(self, x_BKD: Tensor, first_BD: Tensor) -> Tensor:
        """Run one block per row, starting from the vectors `first_BD`."""
        dtype = self.out.weight.dtype
        cell_1BD = first_BD.to(dtype)[None]
        with torch.autocast(x_BKD.device.type, enabled=False):
            h_BKD, _ = self.lstm(x_BKD.to(dtype), (cell_1BD.tanh(), cell_1BD))
        return self.out(h_BKD)

    def run_blocks(self, x_BND: Tensor, first_BND: Tensor, sizes: Sequence[int]) -> Tensor:
        """Run several adjacent blocks per row; blocks of one size run together.

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


class Ssru(nn.Module):
    """An SSRU over the tokens of a sequence; same interface as `nn.layer.heads.SelfAttention`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = Linear(width, 2 * width)
        """W and b, stacked on W_f and b_f."""

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """Run a whole pass; positions and right padding have no effect."""
        return self._run(x_BTD, x_BTD.new_zeros(x_BTD.shape[0], x_BTD.shape[2])).relu()

    def extend(self, x_BTD: Tensor, cache: Cache, step: Step) -> Tensor:
        """Continue from the cached states."""
        assert isinstance(cache, StateRing), "the cache of another layer"
        c_BTD = self._run(x_BTD, cache.newest(x_BTD, step))
        cache.store(c_BTD, step)
        return c_BTD.relu()

    def new_cache(self, rows: int, capacity: int, slack: int = SLACK) -> StateRing:
        """Return an empty cache, of constant size."""
        return StateRing(rows, capacity, back=1, like=self.into.weight, slack=slack)

    def _run(self, x_BTD: Tensor, before_BD: Tensor) -> Tensor:
        dtype = self.into.weight.dtype
        # Errors accumulate along a text, so the recurrence runs in the precision of its weights.
        with torch.autocast(x_BTD.device.type, enabled=False):
            new_BTD, gate_BTD = self.into(x_BTD.to(dtype)).chunk(2, dim=-1)
            gate_BTD = gate_BTD.sigmoid()
            new_BTD = (1 - gate_BTD) * new_BTD
            c_BD, states = before_BD.to(dtype), []
            for gate_BD, new_BD in zip(gate_BTD.unbind(1), new_BTD.unbind(1), strict=True):
                c_BD = gate_BD * c_BD + new_BD
                states.append(c_BD)
        return torch.stack(states, dim=1)
