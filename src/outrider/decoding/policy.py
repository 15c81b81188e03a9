"""How many tokens to draft: what a block costs on this machine, and what it is likely to bring.

    tokens of a round = 1 + sum_{i <= k} s_i            s_i the chance that i drafts in a row hold
    k = argmax (tokens of a round) / (seconds of drafting + seconds of verifying k + 1 tokens)

Costs are measured once, for several numbers of rows and tokens, and interpolated. The chances come
from the drafter's own confidence in a block, and before there is one from a moving average of what
was accepted so far. One row leaves a machine idle that reads all weights for one token, so a block
is almost free; many rows keep it busy, and then plain decoding wins.
"""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from outrider.decoding.batch_speeds import BatchSpeeds
from outrider.decoding.costs import Costs, follow, measure_costs, own_text, smooth
from outrider.decoding.protocol import Backend
from outrider.errors import within_memory

__all__ = ["DraftPolicy", "Plan"]

ROWS = (1, 8, 32, 2, 4, 16)
"""Numbers of rows that are measured, in this order while there is time; the first two always."""
SECONDS = 1.0
"""Measuring stops about here; what is missing is interpolated."""
SOURCE = 24
"""Tokens of a source that rows are opened with, if the model can read so many."""
PRIOR = 0.8
"""Chance of a draft to be accepted before anything was seen: 4.3 tokens a round with 8 drafted.
Rather too high than too low: what is not tried is not learned."""
RATE = 0.02
"""Weight of one draft in the moving average."""
SPREAD = 0.1
"""More rounds for every doubling of rows: the batch goes on until its unluckiest row is done."""
MARGIN = 1.05
"""How much faster drafting must look for a batch to start with it."""


class Plan(NamedTuple):
    """What a round should do."""

    tokens: int
    """How many to draft; 0 where a plain step is the better buy."""
    min_survival: float
    """Chance of being accepted that a drafted token needs to be worth verifying: with a lower one
    it brings fewer tokens in the time it takes than a round does."""


class DraftPolicy:
    """What blocks cost, and how often drafts are accepted."""

    def __init__(self, costs: Mapping[int, Costs]) -> None:
        """Keep what was measured for some numbers of rows."""
        self._costs = dict(sorted(costs.items()))
        self._interpolated: dict[int, Costs] = {}
        self.acceptance = [PRIOR] * len(next(iter(self._costs.values())).draft)
        """Chance of the draft at each place to be accepted if all before it do, as seen so far."""
        self.speeds = BatchSpeeds()
        """What whole batches took, with drafting and without."""

    @classmethod
    def measure(cls, backend: Backend, *, longest_source: int = SOURCE) -> "DraftPolicy":
        """Time a model and its drafter; a language model reads sources of 0 tokens."""
        costs: dict[int, Costs] = {}
        source_length = min(longest_source, SOURCE)
        if backend.max_length is not None:
            source_length = min(source_length, backend.max_length)
            if backend.max_length < 2:  # no place for a draft: let plain steps win
                return cls({1: Costs(1.0, (1.0, 2.0), (1.0,))})
        with within_memory("measuring what drafts cost", "decode with mode ar"):
            text = own_text(backend, source_length)
            started = time.perf_counter()
            for rows in ROWS:
                if len(costs) >= 2 and time.perf_counter() - started > SECONDS:
                    break
                costs[rows] = measure_costs(backend, rows, source_length, text)
        return cls(smooth(costs))

    def costs(self, rows: int) -> Costs:
        """Return the seconds of each call for so many rows."""
        found = self._interpolated.get(rows)
        if found is None:
            found = self._interpolated[rows] = self._interpolate(rows)
        return found

    def plan(self, rows: int) -> Plan:
        """Return how many tokens to draft, and which of them to verify."""
        return self._plan(rows, self.acceptance)

    def pays(self, rows: int, *, length: float) -> bool:
        """Whether a batch of so many rows should start with drafting at all.

        `length` is how many tokens a row is likely to have: opening is paid for once.
        """
        return self._pays(rows, length, self.acceptance)

    def objection(self, rows: int, *, length: float) -> str | None:
        """Return why a batch should not start with drafting; None where it should."""
        if self.pays(rows, length=length):
            return None
        usual = [max(PRIOR, rate) for rate in self.acceptance]
        if self._pays(rows, length, usual):
            return "drafts held too rarely"
        if rows > 1 and self._pays(1, length, usual):
            return "so many rows at once keep this machine busy"
        return "drafting costs more time than it saves"

    def _plan(self, rows: int, acceptance: Sequence[float]) -> Plan:
        costs = self.costs(rows)
        best, speed = 0, 1 / costs.extend[0]
        tokens = survival = 1.0
        for k, (rate, draft) in enumerate(zip(acceptance, costs.draft, strict=True), start=1):
            survival *= rate
            tokens += survival
            if tokens > speed * (draft + costs.extend[k]):
                best, speed = k, tokens / (draft + costs.extend[k])
        one_more = (costs.extend[-1] - costs.extend[0]) / (len(costs.extend) - 1)
        return Plan(best, speed * one_more)

    def _pays(self, rows: int, length: float, acceptance: Sequence[float]) -> bool:
        k, costs = self._plan(rows, acceptance).tokens, self.costs(rows)
        if not k:
            return False
        rounds = length / (1 + sum(accumulate(acceptance[:k], mul)))
        rounds *= 1 + SPREAD * math.log2(rows)
        drafting = costs.open + rounds * (costs.draft[k - 1] + costs.extend[k])
        return length * costs.plain > MARGIN * drafting

    def learn(self, drafted: int, accepted: int) -> None:
        """Remember one block of one row."""
        for place in range(accepted):
            self.acceptance[place] += RATE * (1 - self.acceptance[place])
        if accepted < drafted:
            self.acceptance[accepted] -= RATE * self.acceptance[accepted]

    def relax(self) -> None:
        """Forget a little, so that a drafter that once was wrong is tried again."""
        self.acceptance = [rate + RATE * max(0.0, PRIOR - rate) for rate in self.acceptance]

    def _interpolate(self, rows: int) -> Costs:
        known = self._costs
        plain = follow({n: costs.plain for n, costs in known.items()}, rows)
        open_ = follow({n: costs.open for n, costs in known.items()}, rows)
        extend, draft = (
            tuple(
                follow(dict(zip(known, seconds, strict=True)), rows)
                for seconds in zip(*parts, strict=True)
            )
            for parts in (
                [costs.extend for costs in known.values()],
                [costs.draft for costs in known.values()],
            )
        )
        return Costs(plain, extend, draft, open_)
