"""Which tokens of a draft stand, and which token follows them.

    p = (1 - gamma) p_AR + gamma q          p_AR the model's distribution, q the drafter's

Greedy: a drafted token stands while it is argmax p; then comes argmax p. With gamma = 0 that is
what greedy decoding says, token for token, and no distribution is computed at all (`Argmax`).

Rejection sampling (Leviathan et al., 2023, arXiv:2211.17192): a token x drawn from q stands with
probability min(1, p(x) / q(x)); the first that does not is drawn again from the normalised excess
(p - q)+. What is said is then distributed as p, whatever q is. Since p >= gamma q, an allowed token
stands with probability gamma at least. Greedy decoding has no such floor: there gamma is only a
lean.

Behind a draft that all stands the model's own token comes next, if gamma is 0. With gamma above 0
nothing was drafted for that place, so there is no q to mix, and the round ends with its draft: then
every token is judged by the mixture, and with gamma 1 every one is the drafter's.

Forbidden tokens have probability zero in p, whoever wanted them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outrider.decoding.arrays import Array, add_at, cast, like, log_total, pick, where
from outrider.decoding.protocol import Draft
from outrider.decoding.queries import NOTHING_FORBIDDEN, Forbidden
from outrider.decoding.sampling import Sampling, distribution
from outrider.inverse_cdf import invert

__all__ = ["Accept", "Judged", "Verdict", "compare", "mix"]


class Verdict(NamedTuple):
    """The judgement on one row's draft."""

    accepted: int
    token: int | None
    """What follows the accepted tokens; None where all stand and nothing was scored behind them."""


class Judged(NamedTuple):
    """The judgement on every row's draft."""

    verdicts: list[Verdict]
    log_probs: list[list[float]] | None
    """The model's log-probability of what each row would say if its room allowed, if asked for."""


@dataclass(frozen=True)
class Accept:
    """A question: how much of this draft stands, and what follows it."""

    draft: Draft | None
    """None where nothing was drafted, and only the next token is wanted."""
    gamma: float = 0.0
    sampling: Sampling | None = None
    """None takes the likeliest token."""
    numbers: Sequence[Sequence[float]] = ()
    """For sampling, numbers in [0, 1) of each row: one for each drafted token, and a last one."""
    forbidden: Forbidden = NOTHING_FORBIDDEN
    log_probs: bool = False

    def answer(self, logits_BTV: Array) -> Judged:
        """Compare the draft with what the model thinks; place T - 1 may have none drafted."""
        total_BT1 = log_total(logits_BTV) if self.log_probs else None
        self.forbidden.apply(logits_BTV)
        if self.sampling is None:
            verdicts = self._likeliest(logits_BTV)
        else:
            verdicts = self._drawn(logits_BTV, self.sampling)
        if total_BT1 is None:
            return Judged(verdicts, None)
        said_BT1 = like(logits_BTV, self._said(verdicts, logits_BTV.shape[1]), "int64")[..., None]
        return Judged(verdicts, (pick(logits_BTV, said_BT1) - total_BT1)[..., 0].tolist())

    @property
    def _drafted(self) -> Sequence[Sequence[int]]:
        return () if self.draft is None else self.draft.tokens

    def _likeliest(self, logits_BTV: Array) -> list[Verdict]:
        if self.gamma and self.draft is not None:
            prob_BTV = distribution(logits_BTV, Sampling())
            logits_BTV = mix(prob_BTV, logits_BTV, self.draft, self.gamma)
        best = logits_BTV.argmax(-1).tolist()
        drafted = self._drafted or [[]] * len(best)
        return [compare(*row) for row in zip(drafted, best, strict=True)]

    def _drawn(self, logits_BTV: Array, sampling: Sampling) -> list[Verdict]:
        prob_BTV = distribution(logits_BTV, sampling)
        rows, scored = list(range(logits_BTV.shape[0])), logits_BTV.shape[1]
        accepted = [0] * len(rows)
        if self.draft is not None:
            if self.gamma:
                prob_BTV = mix(prob_BTV, logits_BTV, self.draft, self.gamma)
            accepted = _accepted(prob_BTV, self.draft, [row[:-1] for row in self.numbers])
        place = [min(count, scored - 1) for count in accepted]
        excess_BV = _excess(prob_BTV[rows, place], self.draft, rows, place)
        last_B1 = like(prob_BTV, [row[-1:] for row in self.numbers])
        drawn = invert(excess_BV, last_B1)[:, 0].tolist()
        return [
            Verdict(count, token if count < scored else None)
            for count, token in zip(accepted, drawn, strict=True)
        ]

    def _said(self, verdicts: Sequence[Verdict], places: int) -> list[list[int]]:
        """Return the tokens of every place: accepted ones, the next, and what was refused."""
        drafted = self._drafted or [[]] * len(verdicts)
        said = [
            [*row[:accepted], *([] if token is None else [token]), *row[accepted:]]
            for row, (accepted, token) in zip(drafted, verdicts, strict=True)
        ]
        return [tokens[:places] for tokens in said]


def mix(prob_BKV: Array, logits_BKV: Array, draft: Draft, gamma: float) -> Array:
    """Return (1 - gamma) p + gamma q at the drafted places, which are all there are.

    Forbidden tokens, whose logits are minus infinity, are taken out of q; where nothing is left of
    it, p stands alone.
    """
    ids_BKC = draft.ids_BKC
    q_BKC = cast(draft.prob_BKC, prob_BKV) * (pick(logits_BKV, ids_BKC) > -math.inf)
    mass_BK1 = q_BKC.sum(-1)[..., None]
    weight_BK1 = gamma * (mass_BK1 > 0)
    q_BKC = weight_BK1 * q_BKC / (mass_BK1 + (mass_BK1 == 0))
    return add_at(prob_BKV * (1 - weight_BK1), ids_BKC, q_BKC)


def compare(drafted: Sequence[int], best: Sequence[int]) -> Verdict:
    """Accept a draft while it is what comes out on top."""
    accepted = 0
    for guess, wanted in zip(drafted, best, strict=False):
        if guess != wanted:
            break
        accepted += 1
    return Verdict(accepted, best[accepted] if accepted < len(best) else None)


def _accepted(prob_BTV: Array, draft: Draft, numbers: Sequence[Sequence[float]]) -> list[int]:
    """Return how many tokens of each draft stand: u < p(x) / q(x), up to the first that fails."""
    tokens_BK1 = like(draft.ids_BKC, draft.tokens, "int64")[..., None]
    p_BK = pick(prob_BTV[:, : tokens_BK1.shape[1]], tokens_BK1)[..., 0]
    q_BK = (draft.prob_BKC * (draft.ids_BKC == tokens_BK1)).sum(-1)
    stands = (like(prob_BTV, numbers) * q_BK < p_BK).tolist()
    return [[*row, False].index(False) for row in stands]


def _excess(p_BV: Array, draft: Draft | None, rows: list[int], place: list[int]) -> Array:
    """Return (p - q)+ at a place of each row; past the draft q is zero."""
    if draft is None:
        return p_BV
    last = draft.ids_BKC.shape[1] - 1
    inside = [min(one, last) for one in place]
    drafted_B1 = like(p_BV, [one <= last for one in place])[:, None]
    q_BC = cast(draft.prob_BKC[rows, inside], p_BV) * drafted_B1
    excess_BV = add_at(p_BV, draft.ids_BKC[rows, inside], -q_BC).clip(0)
    # Only rounding can leave no excess: then p and q are the same.
    return where(excess_BV.sum(-1)[..., None] > 0, excess_BV, p_BV)
