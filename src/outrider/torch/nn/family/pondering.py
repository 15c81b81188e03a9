"""A recurrent cell that thinks about a token as long as it needs (Graves, 2016, arXiv:1603.08983).

    s_t^1 = S(s_(t-1), [x_t; 1])        s_t^n = S(s_t^(n-1), [x_t; 0])        n = 2 ... N
    s_t   = p^1 s_t^1 + ... + p^(N-1) s_t^(N-1) + R s_t^N                     y_t = A h_t

p, N and R are those of `nn.layer.halting_unit`, read from h. S is the GRU or the LSTM of
`nn.layer.recurrent`; its state s is h, or h and c side by side, and what decoding keeps is the mean
s_t. The flag tells a new token from another look at the old one. Graves has y be the mean of the
steps' outputs, which is the same: A is linear, and the weights sum to one.

W x_t is computed once for all steps of all tokens. A step computes the rows of a batch that still
think, and no others; padding is not thought about.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.torch.nn.family.halting_unit import Halting, HaltingConfig, Pondered, Ponders, weigh
from outrider.torch.nn.layer.recurrent import BothWays, Gru
from outrider.torch.nn.position import Positions

__all__ = ["PonderingBothWays", "PonderingConfig", "PonderingGru"]

STEP_LIMIT = 1 << 10
_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class PonderingConfig(HaltingConfig):
    """Keys of `pondering`."""

    steps: int = Field(default=8, ge=1, le=STEP_LIMIT)
    """Most steps of a cell over one token."""


class PonderingGru(Ponders, Gru):
    """A GRU each of whose states is the mean of several."""

    def __init__(self, width: int, config: PonderingConfig) -> None:
        super().__init__(width, flags=1)
        self.config = config
        self.halting = Halting(width, config)

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """One whole pass; `keep_BT` marks what is no padding."""
        h_BTD, pondered = self._think(x_BTD, None, keep_BT)
        self.record(pondered, self.config.ponder if self.training else None)
        return self.out(h_BTD)

    def _run(self, x_BTD: Tensor, before_BD: Tensor) -> Tensor:
        return self._think(x_BTD, before_BD, None)[0]

    def _think(
        self, x_BTD: Tensor, before_BD: Tensor | None, keep_BT: Tensor | None
    ) -> tuple[Tensor, Pondered]:
        dtype = self.out.weight.dtype
        with torch.autocast(x_BTD.device.type, enabled=False):
            before_BD = None if before_BD is None else before_BD.to(dtype)
            cell = _Cell.of(self.gru, self.halting, self.config)
            return cell.walk(x_BTD.to(dtype), before_BD, keep_BT)


class PonderingBothWays(Ponders, BothWays):
    """Two such cells over a source; a token costs the steps of both."""

    def __init__(self, width: int, config: PonderingConfig, *, core: str) -> None:
        super().__init__(width, core=core, flags=1)
        self.config = config
        self.halting = Halting(width, config)
        self.halting_back = Halting(width, config)

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """One whole pass; `keep_BT` marks what is no padding, which stands on the right."""
        x_BTD, width = x_BTD.to(self.out.weight.dtype), x_BTD.shape[2]
        turn_BT = _turned(x_BTD, keep_BT)
        with torch.autocast(x_BTD.device.type, enabled=False):
            ahead = _Cell.of(self.states, self.halting, self.config)
            back = _Cell.of(self.states, self.halting_back, self.config, end="_reverse")
            state_BTS, one = ahead.walk(x_BTD, None, keep_BT)
            behind_BTS, two = back.walk(_take(x_BTD, turn_BT), None, keep_BT)
            h_BTE = torch.cat([state_BTS[..., :width], _take(behind_BTS, turn_BT)[..., :width]], -1)
            y_BTD = self.out(h_BTE)
        both = (a_BT + b_BT.gather(1, turn_BT) for a_BT, b_BT in zip(one, two, strict=True))
        self.record(Pondered(*both), self.config.ponder if self.training else None)
        return y_BTD


class _Cell(NamedTuple):
    """One direction of a recurrent layer, and what halts it."""

    input_GE: Tensor
    """W, its last column for the flag."""
    state_GD: Tensor
    """U."""
    input_bias_G: Tensor
    state_bias_G: Tensor
    halting: Halting
    threshold: float
    steps: int

    @classmethod
    def of(
        cls, layer: nn.RNNBase, halting: Halting, config: PonderingConfig, *, end: str = ""
    ) -> "_Cell":
        """Take the weights of one direction of a layer."""
        w, u, b, d = (f"{name}_l0{end}" for name in _WEIGHTS)
        weights = (getattr(layer, w), getattr(layer, u), getattr(layer, b), getattr(layer, d))
        return cls(*weights, halting, config.threshold, config.steps)

    def walk(
        self, x_BTD: Tensor, before_BS: Tensor | None, keep_BT: Tensor | None
    ) -> tuple[Tensor, Pondered]:
        """Think about one token after the other; return the states after each."""
        given_BTG = F.linear(x_BTD, self.input_GE[:, :-1], self.input_bias_G)
        gates, width = self.state_GD.shape
        if before_BS is None:  # an LSTM has four gates, and two vectors to remember
            before_BS = x_BTD.new_zeros(len(x_BTD), 2 * width if gates == 4 * width else width)
        state_BS, thoughts = before_BS, []
        for t, given_BG in enumerate(given_BTG.unbind(1)):
            real_B = None if keep_BT is None else keep_BT[:, t]
            thoughts.append(self.think(given_BG, state_BS, real_B))
            state_BS = thoughts[-1][0]
        states, steps, remainders = (torch.stack(one, dim=1) for one in zip(*thoughts, strict=True))
        return states, Pondered(steps, remainders)

    def think(
        self, given_BG: Tensor, state_BS: Tensor, real_B: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Think about one token of every row; return the mean state, N and R."""
        wide = torch.promote_types(state_BS.dtype, torch.float32)
        mean_BS = torch.zeros_like(state_BS, dtype=wide)
        taken_B = remainder_B = mean_BS[:, 0]
        row_A = torch.arange(len(state_BS), device=state_BS.device)
        if real_B is not None:
            row_A = real_B.nonzero()[:, 0]
            mean_BS = torch.where(real_B[:, None], mean_BS, state_BS)
        given_AG, state_AS = _rows(given_BG, row_A), _rows(state_BS, row_A)
        before_A = mean_BS.new_zeros(len(row_A))
        for step in range(self.steps if len(row_A) else 0):
            flag_G = self.input_GE[:, -1] if step == 0 else 0
            state_AS = self.step(given_AG + flag_G, state_AS)
            p_A = self.halting(state_AS[:, : self.state_GD.shape[1]])
            last = step == self.steps - 1
            turn = weigh(p_A, before_A, threshold=self.threshold, last=last)
            mean_BS = _add(mean_BS, row_A, turn.weight[:, None] * state_AS)
            remainder_B = _add(remainder_B, row_A, turn.remainder)
            taken_B = _add(taken_B, row_A, torch.ones_like(p_A))
            on_C = (~turn.halts).nonzero()[:, 0]
            if not len(on_C):
                break
            row_A, before_A = _rows(row_A, on_C), _rows(before_A + p_A, on_C)
            given_AG, state_AS = _rows(given_AG, on_C), _rows(state_AS, on_C)
        return mean_BS.to(state_BS.dtype), taken_B, remainder_B

    def step(self, given_AG: Tensor, state_AS: Tensor) -> Tensor:
        """Run the cell once; see `nn.layer.recurrent` for its equations."""
        width = self.state_GD.shape[1]
        h_AD = state_AS[:, :width]
        known_AG = F.linear(h_AD, self.state_GD, self.state_bias_G)
        if state_AS.shape[1] == width:
            r_given, z_given, n_given = given_AG.chunk(3, dim=-1)
            r_known, z_known, n_known = known_AG.chunk(3, dim=-1)
            n_AD = (n_given + (r_given + r_known).sigmoid() * n_known).tanh()
            return torch.lerp(n_AD, h_AD, (z_given + z_known).sigmoid())
        i_AD, f_AD, g_AD, o_AD = (given_AG + known_AG).chunk(4, dim=-1)
        c_AD = f_AD.sigmoid() * state_AS[:, width:] + i_AD.sigmoid() * g_AD.tanh()
        return torch.cat([o_AD.sigmoid() * c_AD.tanh(), c_AD], dim=-1)


def _rows(x_B: Tensor, row_A: Tensor) -> Tensor:
    """Take some rows; `row_A` names them in order, so as many as there are means all."""
    return x_B if len(row_A) == len(x_B) else x_B.index_select(0, row_A)


def _add(into_B: Tensor, row_A: Tensor, y_A: Tensor) -> Tensor:
    """Return `into_B` with something added to some rows."""
    return into_B + y_A if len(row_A) == len(into_B) else into_B.index_add(0, row_A, y_A)


def _turned(x_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
    """Return where each token stands when its row is read backwards; padding stays behind."""
    rows, tokens, _ = x_BTD.shape
    place_T = torch.arange(tokens, device=x_BTD.device)
    if keep_BT is None:
        return place_T.flip(0).expand(rows, -1)
    length_B1 = keep_BT.sum(1, keepdim=True)
    return torch.where(place_T < length_B1, length_B1 - 1 - place_T, place_T)


def _take(x_BTE: Tensor, place_BT: Tensor) -> Tensor:
    return x_BTE.gather(1, place_BT[..., None].expand_as(x_BTE))
