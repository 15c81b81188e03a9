"""Which tokens of a draft stand, and which token follows them.

    p = (1 - gamma) p_AR + gamma q          p_AR the model's distribution, q the drafter's

Greedy: a drafted token stands while it is argmax p; then comes argmax p. With gamma = 0 that is
what greedy decoding says, token for token, and no distribution is computed at all.

Sampling (Leviathan et al., 2023, arXiv:2211.17192): a token x drawn from q stands with probability
min(1, p(x) / q(x)); the first that does not is drawn again from the normalised excess (p - q)+.
What is said is then distributed as p, whatever q is. Since p >= gamma q, an allowed token stands
with probability gamma at least. Greedy decoding has no such floor: there gamma is only a lean.

Behind a draft that all stands the model's own token comes next, if gamma is 0. With gamma above 0
nothing was drafted for that place, so there is no q to mix, and the round ends with its draft: then
every token is judged by the mixture, and with gamma 1 every one is the drafter's.

Forbidden tokens have probability zero in p, whoever wanted them.
"""

import math
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.decoding.config import DecodeConfig
from outrider.decoding.likeliest import likeliest
from outrider.decoding.protocol import Draft
from outrider.decoding.replay import Replay
from outrider.decoding.request import row_seed
from outrider.decoding.row import Row
from outrider.decoding.sample import distribution
from outrider.decoding.stream import Stream
from outrider.nn.draw import invert

__all__ = ["Drawn", "Judge", "Likeliest", "Verdict", "compare", "mix"]


class Verdict(NamedTuple):
    """The judgement on one row's draft."""

    accepted: int
    token: int | None
    """What follows the accepted tokens; None where all stand and nothing was scored behind them."""


class Judge(Protocol):
    """Decides about a block of every row."""

    def numbers(self, rows: Sequence[Row], slots: int) -> Tensor | None:
        """Return the random numbers to draft with, [B, slots]; None drafts the likeliest."""
        ...

    def __call__(
        self,
        rows: Sequence[Row],
        drafted: Sequence[Sequence[int]],
        draft: Draft | None,
        logits_BTV: Tensor,
    ) -> list[Verdict]:
        """Compare drafts with masked logits, T of them; place T - 1 may have none drafted."""
        ...


class Likeliest:
    """Greedy: the likeliest token under the mixture."""

    def __init__(self, gamma: float, replay: Replay | None = None) -> None:
        self.gamma = gamma
        self.replay = replay

    def numbers(self, rows: Sequence[Row], slots: int) -> None:
        """Nothing is drawn."""

    def __call__(
        self,
        rows: Sequence[Row],
        drafted: Sequence[Sequence[int]],
        draft: Draft | None,
        logits_BTV: Tensor,
    ) -> list[Verdict]:
        """Accept while the draft is what comes out on top."""
        if self.gamma and draft is not None:
            logits_BTV = mix(logits_BTV.softmax(-1), logits_BTV, draft, self.gamma)
        best_BT = likeliest(logits_BTV)
        if self.replay is None:
            best = best_BT.tolist()
        else:
            started, seconds = perf_counter(), self.replay.stats.seconds
            best = self.replay.settle(rows, drafted, best_BT, logits_BTV)
            spent = perf_counter() - started
            seconds["verify"] += spent
            seconds["loop"] -= spent  # whoever calls counts all its time as the loop's
        return [compare(*row) for row in zip(drafted, best, strict=True)]


class Drawn:
    """Sampling: each row accepts and draws with numbers from its own stream.

    A round takes 2 * block + 1 numbers whatever is done with them, so a row's text depends on its
    seed and its own past alone.
    """

    def __init__(self, config: DecodeConfig, rows: Sequence[Row], block: int) -> None:
        self.config = config
        self.block = block
        self._streams = {row.index: Stream(row_seed(row.request, config)) for row in rows}
        self._uniform_BN = torch.empty(0)

    def numbers(self, rows: Sequence[Row], slots: int) -> Tensor:
        """Draw the numbers of a round; the first are for drafting."""
        count = 2 * self.block + 1
        drawn = [self._streams[row.index].draw(count) for row in rows]
        self._uniform_BN = torch.stack(drawn)
        return self._uniform_BN[:, :slots]

    def __call__(
        self,
        rows: Sequence[Row],
        drafted: Sequence[Sequence[int]],
        draft: Draft | None,
        logits_BTV: Tensor,
    ) -> list[Verdict]:
        """Accept with probability min(1, p / q), else draw from the excess of p over q."""
        uniform_BN = self._uniform_BN.to(logits_BTV.device)
        prob_BTV = distribution(logits_BTV, self.config)
        accepted_B = torch.zeros(len(rows), dtype=torch.long, device=logits_BTV.device)
        if draft is not None:
            slots = draft.tokens_BK.shape[1]
            if self.config.gamma:
                prob_BTV = mix(prob_BTV, logits_BTV, draft, self.config.gamma)
            accept_BK = uniform_BN[:, self.block : self.block + slots]
            accepted_B = _accept(prob_BTV, draft, accept_BK)
        scored = logits_BTV.shape[1]
        next_B = accepted_B.clamp(max=scored - 1)
        token_B1 = invert(_excess(prob_BTV, draft, next_B), uniform_BN[:, -1:])
        pairs = torch.cat([accepted_B[:, None], token_B1], dim=1).tolist()
        return [Verdict(count, token if count < scored else None) for count, token in pairs]


def mix(prob_BTV: Tensor, logits_BTV: Tensor, draft: Draft, gamma: float) -> Tensor:
    """Return (1 - gamma) p + gamma q at the drafted places and p after them.

    Forbidden tokens, whose logits are minus infinity, are taken out of q; where nothing is left of
    it, p stands alone.
    """
    slots = draft.ids_BKC.shape[1]
    allowed_BKC = logits_BTV[:, :slots].gather(-1, draft.ids_BKC) > -math.inf
    q_BKC = draft.prob_BKC.to(prob_BTV.dtype) * allowed_BKC
    mass_BK1 = q_BKC.sum(-1, keepdim=True)
    weight_BK1 = gamma * (mass_BK1 > 0)
    q_BKC = torch.where(mass_BK1 > 0, weight_BK1 * q_BKC / mass_BK1, 0.0)
    mixed_BKV = prob_BTV[:, :slots] * (1 - weight_BK1)
    mixed_BKV.scatter_add_(-1, draft.ids_BKC, q_BKC)
    return torch.cat([mixed_BKV, prob_BTV[:, slots:]], dim=1)


def compare(drafted: Sequence[int], best: Sequence[int]) -> Verdict:
    """Accept a draft while it is what comes out on top."""
    accepted = 0
    for guess, wanted in zip(drafted, best, strict=False):
        if guess != wanted:
            break
        accepted += 1
    return Verdict(accepted, best[accepted] if accepted < len(best) else None)


def _accept(prob_BTV: Tensor, draft: Draft, uniform_BK: Tensor) -> Tensor:
    """Return how many tokens of each draft stand: u < p(x) / q(x), up to the first that fails."""
    tokens_BK1 = draft.tokens_BK[..., None]
    p_BK = prob_BTV[:, : tokens_BK1.shape[1]].gather(-1, tokens_BK1)[..., 0]
    q_BK = (draft.prob_BKC * (draft.ids_BKC == tokens_BK1)).sum(-1)
    stands_BK = uniform_BK * q_BK < p_BK
    return stands_BK.long().cumprod(dim=1).sum(dim=1)


def _excess(prob_BTV: Tensor, draft: Draft | None, accepted_B: Tensor) -> Tensor:
    """Return (p - q)+ at the place after the accepted tokens; past the draft q is zero."""
    row_B = torch.arange(len(prob_BTV), device=prob_BTV.device)
    p_BV = prob_BTV[row_B, accepted_B]
    if draft is None:
        return p_BV
    q_BC = F.pad(draft.prob_BKC, (0, 0, 0, 1))[row_B, accepted_B]
    ids_BC = F.pad(draft.ids_BKC, (0, 0, 0, 1))[row_B, accepted_B]
    excess_BV = p_BV.scatter_add(-1, ids_BC, -q_BC.to(p_BV.dtype)).clamp(min=0)
    # Only rounding can leave no excess: then p and q are the same.
    return torch.where(excess_BV.sum(-1, keepdim=True) > 0, excess_BV, p_BV)
