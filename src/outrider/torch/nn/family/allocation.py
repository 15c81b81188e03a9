"""Step allocation: predict the decoder's inputs for all target steps from the source.

    L     = S exp(v . mean_s h_s + b)                  length of the target, predicted
    c_s   = (s + 1/2) L / S                            expected target step of source position s
    e_sj  = -(j + 1/2 - c_s)^2 / (2 WIDTH^2) + u . tanh(W h_s + code(j))
    A_sj  = softmax over j of e_sj                     each position spreads one unit of mass
    m_j   = sum_s A_sj                                 the mass of step j
    a_j   = O (sum_s A_sj h_s / m_j)                   a softmax over s of log A_sj

s counts the S real source positions from 0, j the target's steps from 0. A position reaches the
steps within `REACH`, three WIDTHs, of its expected step, so the content score costs S times a
constant. A step is inactive if its mass is below `THRESHOLD` times the mean S / L: then a_j is
zero, and a text ends when all further steps are inactive. u, v and b start at zero: L = S, and A is
a plain diagonal.
"""

import math
from typing import Self

import torch
from torch import Tensor, nn

from outrider.torch.nn.cache import join_rows
from outrider.torch.nn.linear import Linear
from outrider.torch.nn.position import Positions, SineTable

WIDTH = 2.0
"""Standard deviation of a position's mass, in steps."""
REACH = 6
"""Steps that a position reaches on either side."""
RATIO = 4.0
"""Limit of the ratio of target and source length, in both directions."""
THRESHOLD = 0.1
"""Share of the mean mass from which a step is active."""
CODES = 64
"""Width of the content score."""


class StepTable:
    """The inputs of every step of every row; read-only, and used as a cache."""

    wraps = False

    def __init__(self, inputs_BJD: Tensor, active_BJ: Tensor) -> None:
        self.active_BJ = active_BJ
        """Active steps."""
        self.inputs_BJD = inputs_BJD * active_BJ[..., None]

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.inputs_BJD.nbytes + self.active_BJ.nbytes

    def select(self, row_N: Tensor, used: int = 0) -> None:
        """Reorder, drop or copy rows."""
        self.inputs_BJD = self.inputs_BJD.index_select(0, row_N)
        self.active_BJ = self.active_BJ.index_select(0, row_N)

    def join(self, other: Self, place_N: Tensor, rows: int) -> None:
        """Write the rows of another table to these indices; new steps are inactive."""
        self.inputs_BJD = join_rows(self.inputs_BJD, other.inputs_BJD, place_N, rows)
        self.active_BJ = join_rows(self.active_BJ, other.active_BJ, place_N, rows)

    def at(self, place_BN: Tensor) -> Tensor:
        """Return the inputs of some steps, [B, N, D]; zeros after the last one."""
        rows, steps, width = self.inputs_BJD.shape
        place_BN1 = place_BN.expand(rows, -1)[..., None]
        index_BND = place_BN1.clamp(max=steps - 1).expand(-1, -1, width)
        return self.inputs_BJD.gather(1, index_BND) * (place_BN1 < steps)

    @property
    def end_B(self) -> Tensor:
        """The step after the last active one."""
        step_J = torch.arange(1, self.active_BJ.shape[1] + 1, device=self.active_BJ.device)
        return (self.active_BJ * step_J).amax(1)


class StepAllocation(nn.Module):
    """Allocates the encoder's states to steps, with a number per pair (step, position)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.content = Linear(width, CODES)
        """W."""
        self.vote_E = nn.Parameter(torch.zeros(CODES))
        """u."""
        self.length_D = nn.Parameter(torch.zeros(width))
        """v."""
        self.length_bias = nn.Parameter(torch.zeros(()))
        self.out = Linear(width, width)
        """O."""
        self.codes = SineTable(CODES)

    def reset(self) -> None:
        """Initialise to a diagonal with the length of the source."""
        for weight in (self.vote_E, self.length_D, self.length_bias):
            nn.init.zeros_(weight)

    def forward(self, h_BSD: Tensor, keep_BS: Tensor | None = None) -> StepTable:
        """Distribute the states of right-padded rows over their steps."""
        spread_BJS = self.spread(h_BSD, keep_BS)
        mass_BJ = spread_BJS.sum(2)
        share_BJS = spread_BJS / mass_BJ.clamp(min=torch.finfo(mass_BJ.dtype).tiny)[..., None]
        even_B1 = (_real(h_BSD, keep_BS).sum(1) / self.log_length(h_BSD, keep_BS).exp())[:, None]
        inputs_BJD = self.out(share_BJS.to(h_BSD.dtype) @ h_BSD)
        return StepTable(inputs_BJD, mass_BJ >= THRESHOLD * even_B1)

    def log_length(self, h_BSD: Tensor, keep_BS: Tensor | None = None) -> Tensor:
        """Return log L of every row, in float32 at least."""
        wide_BSD = h_BSD.to(torch.promote_types(h_BSD.dtype, torch.float32))
        real_BS = _real(h_BSD, keep_BS)
        count_B = real_BS.sum(1).to(wide_BSD.dtype)
        mean_BD = (wide_BSD * real_BS[..., None]).sum(1) / count_B[:, None]
        # Not a matrix product, which autocast would round: a length of 300 needs more digits.
        ratio_B = (mean_BD * self.length_D).sum(1) + self.length_bias
        return count_B.log() + ratio_B.clamp(-math.log(RATIO), math.log(RATIO))

    def spread(self, h_BSD: Tensor, keep_BS: Tensor | None = None) -> Tensor:
        """Return A, [B, J, S]."""
        real_BS = _real(h_BSD, keep_BS)
        centre_BS = self._centres(h_BSD, real_BS)
        last = int(centre_BS.detach().amax()) + REACH  # the only device synchronisation
        reach_W11 = torch.arange(-REACH, REACH + 1, device=h_BSD.device)[:, None, None]
        step_WBS = centre_BS.detach().floor().long() + reach_W11
        key_BSE = self.content(h_BSD)
        near_WBS = -((step_WBS + 0.5 - centre_BS) ** 2) / (2 * WIDTH**2)
        score_WBS = near_WBS + torch.stack([self._vote(key_BSE, j, last) for j in step_WBS])
        lowest = torch.finfo(score_WBS.dtype).min
        mass_WBS = score_WBS.masked_fill(step_WBS < 0, lowest).softmax(0) * real_BS
        spread_BJS = mass_WBS.new_zeros(h_BSD.shape[0], last + 1, h_BSD.shape[1])
        index_BWS = step_WBS.clamp(0, last).transpose(0, 1)
        return spread_BJS.scatter_add(1, index_BWS, mass_WBS.transpose(0, 1))

    def _centres(self, h_BSD: Tensor, real_BS: Tensor) -> Tensor:
        """Return c of every position; 0 for padding."""
        step_B1 = (self.log_length(h_BSD, real_BS).exp() / real_BS.sum(1))[:, None]
        place_S = torch.arange(h_BSD.shape[1], device=h_BSD.device) + 0.5
        return place_S * step_B1 * real_BS

    def _vote(self, key_BSE: Tensor, step_BS: Tensor, last: int) -> Tensor:
        """Return u . tanh(W h_s + code(j)) for every position and one step each."""
        positions = Positions(step_BS.clamp(0, last), last + 1)
        code_BSE = torch.cat(self.codes.look_up(positions, key_BSE), dim=-1)
        return torch.tanh(key_BSE + code_BSE) @ self.vote_E


def _real(h_BSD: Tensor, keep_BS: Tensor | None) -> Tensor:
    if keep_BS is not None:
        return keep_BS
    return torch.ones(h_BSD.shape[:2], dtype=torch.bool, device=h_BSD.device)
