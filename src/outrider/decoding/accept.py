"""Acceptance rules: which tokens of a draft are kept, and the token after them.

    p = (1 - gamma) p_AR + gamma q          p_AR the model's distribution, q the drafter's

Greedy: a drafted token is accepted while it equals argmax p; argmax p follows. With gamma = 0 this
is greedy decoding, token for token, and no distribution is computed (`Argmax`).

Rejection sampling (Leviathan et al., 2023, arXiv:2211.17192): a token x drawn from q is accepted
with probability min(1, p(x) / q(x)); the first rejected token is drawn again from the normalised
excess (p - q)+. The output is then distributed as p for any q. Since p >= gamma q, an allowed token
is accepted with probability at least gamma. Greedy decoding has no such lower bound.

After a fully accepted draft the model's own token follows if gamma is 0. With gamma above 0 there
is no q for that position to mix, so the round ends with its draft: every token is judged by the
mixture, and with gamma 1 every token is the drafter's.

Forbidden tokens have probability zero in p.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outrider.decoding.arrays import Array, add_at, cast, like, log_total, pick, where
from outrider.decoding.protocol import Candidates, Proposal
from outrider.decoding.queries import NOTHING_FORBIDDEN, Forbidden
from outrider.decoding.request import Verdict, compare
from outrider.decoding.sampling import distribution
from outrider.inverse_cdf import invert
from outrider.options import Sampling


class Judged(NamedTuple):
    """The judgement on every row's draft."""

    verdicts: list[Verdict]
    log_probs: list[list[float]] | None
    """The model's log-probabilities of each row's tokens before its length limit, if requested."""


@dataclass(frozen=True)
class Accept:
    """Query: how many tokens of this draft are accepted, and which token follows."""

    draft: Proposal | None
    """None to choose only the next token."""
    gamma: float = 0.0
    sampling: Sampling | None = None
    """None for argmax."""
    numbers: Sequence[Sequence[float]] = ()
    """For sampling: numbers in [0, 1), for each row one per drafted token and one more."""
    forbidden: Forbidden = NOTHING_FORBIDDEN
    log_probs: bool = False

    def answer(self, logits_BTV: Array) -> Judged:
        """Compare the draft with the model's scores; the last position may have no draft."""
        total_BT1 = log_total(logits_BTV) if self.log_probs else None
        self.forbidden.apply(logits_BTV)
        if self.sampling is None:
            verdicts = self._likeliest(logits_BTV)
        else:
            verdicts = self._drawn(logits_BTV, self.sampling)
        if total_BT1 is None:
            return Judged(verdicts, None)
        tokens = self._tokens(verdicts, logits_BTV.shape[1])
        token_BT1 = like(logits_BTV, tokens, "int64")[..., None]
        return Judged(verdicts, (pick(logits_BTV, token_BT1) - total_BT1)[..., 0].tolist())

    @property
    def _drafted(self) -> Sequence[Sequence[int]]:
        return () if self.draft is None else self.draft.tokens

    def _likeliest(self, logits_BTV: Array) -> list[Verdict]:
        if self.gamma and self.draft is not None:
            prob_BTV = distribution(logits_BTV, Sampling())
            logits_BTV = mix(prob_BTV, logits_BTV, _candidates(self.draft, logits_BTV), self.gamma)
        best = logits_BTV.argmax(-1).tolist()
        drafted = self._drafted or [[]] * len(best)
        return [compare(*row) for row in zip(drafted, best, strict=True)]

    def _drawn(self, logits_BTV: Array, sampling: Sampling) -> list[Verdict]:
        prob_BTV = distribution(logits_BTV, sampling)
        rows, scored = list(range(logits_BTV.shape[0])), logits_BTV.shape[1]
        accepted, q = [0] * len(rows), None
        if self.draft is not None:
            q = _candidates(self.draft, logits_BTV)
            if self.gamma:
                prob_BTV = mix(prob_BTV, logits_BTV, q, self.gamma)
            numbers = [row[:-1] for row in self.numbers]
            accepted = _accepted(prob_BTV, self.draft.tokens, q, numbers)
        positions = [min(count, scored - 1) for count in accepted]
        excess_BV = _excess(prob_BTV[rows, positions], q, rows, positions)
        last_B1 = like(prob_BTV, [row[-1:] for row in self.numbers])
        drawn = invert(excess_BV, last_B1)[:, 0].tolist()
        return [
            Verdict(count, token if count < scored else None)
            for count, token in zip(accepted, drawn, strict=True)
        ]

    def _tokens(self, verdicts: Sequence[Verdict], count: int) -> list[list[int]]:
        """Return `count` tokens a row: accepted ones, the next, then rejected ones as padding."""
        drafted = self._drafted or [[]] * len(verdicts)
        return [
            [*row[:accepted], *([] if token is None else [token]), *row[accepted:]][:count]
            for row, (accepted, token) in zip(drafted, verdicts, strict=True)
        ]


def _candidates(draft: Proposal, array: Array) -> Candidates:
    """Return q as arrays of the same kind; a deterministic draft has one candidate a position."""
    if draft.probabilities is not None:
        return draft.probabilities
    ids_BK1 = like(array, draft.tokens, "int64")[..., None]
    return Candidates(ids_BK1, ids_BK1 * 0 + 1)


def mix(prob_BKV: Array, logits_BKV: Array, q: Candidates, gamma: float) -> Array:
    """Return (1 - gamma) p + gamma q at all positions, each of which has a drafted token.

    Forbidden tokens, whose logits are minus infinity, are removed from q; where no mass remains, p
    is used alone.
    """
    ids_BKC = q.ids_BKC
    q_BKC = cast(q.prob_BKC, prob_BKV) * (pick(logits_BKV, ids_BKC) > -math.inf)
    mass_BK1 = q_BKC.sum(-1)[..., None]
    weight_BK1 = gamma * (mass_BK1 > 0)
    q_BKC = weight_BK1 * q_BKC / (mass_BK1 + (mass_BK1 == 0))
    return add_at(prob_BKV * (1 - weight_BK1), ids_BKC, q_BKC)


def _accepted(
    prob_BTV: Array,
    drafted: Sequence[Sequence[int]],
    q: Candidates,
    numbers: Sequence[Sequence[float]],
) -> list[int]:
    """Return how many tokens of each draft are accepted: u < p(x) / q(x), until the first fails."""
    tokens_BK1 = like(q.ids_BKC, drafted, "int64")[..., None]
    p_BK = pick(prob_BTV[:, : tokens_BK1.shape[1]], tokens_BK1)[..., 0]
    q_BK = (q.prob_BKC * (q.ids_BKC == tokens_BK1)).sum(-1)
    accepted = (like(prob_BTV, numbers) * q_BK < p_BK).tolist()
    return [[*row, False].index(False) for row in accepted]


def _excess(p_BV: Array, q: Candidates | None, rows: list[int], positions: list[int]) -> Array:
    """Return (p - q)+ at one position of each row; past the draft q is zero."""
    if q is None:
        return p_BV
    last = q.ids_BKC.shape[1] - 1
    inside = [min(position, last) for position in positions]
    drafted_B1 = like(p_BV, [position <= last for position in positions])[:, None]
    q_BC = cast(q.prob_BKC[rows, inside], p_BV) * drafted_B1
    excess_BV = add_at(p_BV, q.ids_BKC[rows, inside], -q_BC).clip(0)
    # Only rounding leaves no excess: p and q are then equal.
    return where(excess_BV.sum(-1)[..., None] > 0, excess_BV, p_BV)
