"""Step allocation: what each step of the target is made of, before any of its tokens is known.

    L     = S exp(v . mean_s h_s + b)                  length of the target, predicted
    c_s   = (s + 1/2) L / S                            where source position s ought to land
    e_sj  = -(j + 1/2 - c_s)^2 / (2 WIDTH^2) + u . tanh(W h_s + code(j))
    A_sj  = softmax over j of e_sj                     each position spreads one unit of mass
    m_j   = sum_s A_sj                                 the mass of step j
    a_j   = O (sum_s A_sj h_s / m_j)                   a softmax over s of log A_sj

s counts the S real source positions from 0, j the target's steps from 0. A position reaches the
steps at most `REACH` from the one it lands on, three WIDTHs; so the content score costs S times a
constant. A step whose mass is less than `THRESHOLD` of S / L, which is what each would have if all
had the same, takes no part: a_j is zero, and a text whose every further step is such has ended.
u, v and b are zero at the start: L = S, and A is a plain diagonal.
"""

import math
from typing import Self

import torch
from torch import Tensor, nn

from outrider.torch.nn.cache import join_rows
from outrider.torch.nn.linear import Linear
from outrider.torch.nn.position import Positions, SineTable

__all__ = ["REACH", "THRESHOLD", "WIDTH", "StepAllocation", "StepTable"]

WIDTH = 2.0
"""Steps over which a position's mass spreads."""
REACH = 6
"""Steps to either side that a position reaches."""
RATIO = 4.0
"""A target is at most so many times as long as its source, and at least one of so many parts."""
THRESHOLD = 0.1
"""Part of an even share from which a step takes part."""
CODES = 64
"""Width of the content score."""


class StepTable:
    """What is given to every step of every row. Nothing is written to it, so it is a cache too."""

    wraps = False

    def __init__(self, inputs_BJD: Tensor, taken_BJ: Tensor) -> None:
        self.taken_BJ = taken_BJ
        """Steps that take part."""
        self.inputs_BJD = inputs_BJD * taken_BJ[..., None]

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.inputs_BJD.nbytes + self.taken_BJ.nbytes

    def select(self, row_N: Tensor, used: int = 0) -> None:
        """Reorder, drop or copy rows."""
        self.inputs_BJD = self.inputs_BJD.index_select(0, row_N)
        self.taken_BJ = self.taken_BJ.index_select(0, row_N)

    def join(self, other: Self, place_N: Tensor, rows: int) -> None:
        """Put the rows of another table at these places; steps that nobody had take no part."""
        self.inputs_BJD = join_rows(self.inputs_BJD, other.inputs_BJD, place_N, rows)
        self.taken_BJ = join_rows(self.taken_BJ, other.taken_BJ, place_N, rows)

    def at(self, place_BN: Tensor) -> Tensor:
        """Return the inputs of some steps, [B, N, D]; zeros behind the last one."""
        rows, steps, width = self.inputs_BJD.shape
        place_BN1 = place_BN.expand(rows, -1)[..., None]
        index_BND = place_BN1.clamp(max=steps - 1).expand(-1, -1, width)
        return self.inputs_BJD.gather(1, index_BND) * (place_BN1 < steps)

    @property
    def end_B(self) -> Tensor:
        """The step behind the last one that takes part."""
        step_J = torch.arange(1, self.taken_BJ.shape[1] + 1, device=self.taken_BJ.device)
        return (self.taken_BJ * step_J).amax(1)


class StepAllocation(nn.Module):
    """Reads the encoder's states; holds a number for every pair (step, position), no vector."""

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
        """Start as a diagonal of the source's own length."""
        for weight in (self.vote_E, self.length_D, self.length_bias):
            nn.init.zeros_(weight)

    def forward(self, h_BSD: Tensor, keep_BS: Tensor | None = None) -> StepTable:
        """Spread the states of right-padded rows over their steps."""
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
        # A product would be rounded by autocast; a length of 300 wants more than three digits.
        ratio_B = (mean_BD * self.length_D).sum(1) + self.length_bias
        return count_B.log() + ratio_B.clamp(-math.log(RATIO), math.log(RATIO))

    def spread(self, h_BSD: Tensor, keep_BS: Tensor | None = None) -> Tensor:
        """Return A with all steps in it, [B, J, S]."""
        real_BS = _real(h_BSD, keep_BS)
        centre_BS = self._centres(h_BSD, real_BS)
        last = int(centre_BS.detach().amax()) + REACH  # the one question to the device
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
        """Return c of every position; that of padding is 0."""
        step_B1 = (self.log_length(h_BSD, real_BS).exp() / real_BS.sum(1))[:, None]
        place_S = torch.arange(h_BSD.shape[1], device=h_BSD.device) + 0.5
        return place_S * step_B1 * real_BS

    def _vote(self, key_BSE: Tensor, step_BS: Tensor, last: int) -> Tensor:
        """Return u . tanh(W h_s + code(j)) of every position and one step for each."""
        positions = Positions(step_BS.clamp(0, last), last + 1)
        code_BSE = torch.cat(self.codes.look_up(positions, key_BSE), dim=-1)
        return torch.tanh(key_BSE + code_BSE) @ self.vote_E


def _real(h_BSD: Tensor, keep_BS: Tensor | None) -> Tensor:
    if keep_BS is not None:
        return keep_BS
    return torch.ones(h_BSD.shape[:2], dtype=torch.bool, device=h_BSD.device)
