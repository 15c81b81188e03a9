"""Chooses whether to draft and how many tokens, from the times of earlier rounds.

    tokens of a row in a round of k drafts = 1 + sum_{i <= k} a_1 ... a_i
    k = argmax (tokens of a row) / (seconds of the round) * (1 + OPTIMISM / sqrt(n_k))

a_i is the chance that draft i is accepted if all before it are. Seconds and chances are means in
which older rounds weigh less; n_k is the weight of the rounds of k drafts. A length that was not
used for long is therefore tried again, less often the slower it was (discounted upper confidence
bounds, Garivier and Moulines, 2011, arXiv:0805.3415). Nothing is measured before the first
sentence: its first rounds alternate between plain steps and short blocks.

Used only where every choice gives the same text (`request.may_draft`).
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from time import perf_counter
from typing import NamedTuple

BLOCK_LENGTHS = (2, 4, 8)
"""Candidate block lengths."""
FIRST_BLOCK = 4
"""Length of the first blocks."""
MIN_TRIALS = 2
"""Plain steps and first blocks measured before a choice is made; the first prepares kernels."""
WARMUP = 3
"""Steps of which the minimum time counts, because first uses and other programs only add time."""
OUTLIER = 1.25
"""Times are clipped at this multiple of the mean, so that pauses of the machine do not count."""
DECAY = 1 - 1 / 256
"""Factor on the weight of a step for each later step."""
OPTIMISM = 0.25
"""Exploration bonus of a length with weight 1."""
PLAN_ROUNDS = 8
"""Most rounds between two choices."""
MIN_WEIGHT = 0.02
"""Lower bound of the weight in the exploration bonus."""
PRIOR, PRIOR_WEIGHT = 0.6, 1.0
"""Prior acceptance chance of a draft, and its weight in drafts."""


class Plan(NamedTuple):
    """The plan of a round."""

    tokens: int
    """Drafts per row; 0 for a plain step."""
    min_survival: float = 0.0
    """Least chance of acceptance of a draft that is verified: a less likely one brings fewer tokens
    per second than the round."""


class _Step:
    """Means of one kind of step."""

    def __init__(self) -> None:
        self.count, self.at = 0, 0
        self.weight = 0.0
        self.seconds = math.inf
        self.drafting = self.checked = 0.0

    def observe(self, at: int, seconds: float, drafting: float = 0.0, checked: float = 0.0) -> None:
        """Record step number `at` of this size."""
        seconds = max(seconds, 1e-9)  # a coarse clock may not advance
        self.weight = self.weight_at(at) + 1
        self.count, self.at = self.count + 1, at
        if self.count <= WARMUP:
            if seconds <= self.seconds:
                self.seconds, self.drafting, self.checked = seconds, drafting, checked
            return
        most, rate = OUTLIER * self.seconds, 1 / self.weight
        self.seconds += rate * (min(seconds, most) - self.seconds)
        self.drafting += rate * (min(drafting, most) - self.drafting)
        self.checked += rate * (checked - self.checked)

    def weight_at(self, at: int) -> float:
        return self.weight * DECAY ** (at - self.at)

    def optimism(self, at: int) -> float:
        weight = max(MIN_WEIGHT, self.weight_at(at)) if self.count else 1.0
        return 1 + OPTIMISM / math.sqrt(weight)


class _Size:
    """Measurements of steps with similar numbers of rows."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.steps = 0
        self.blocks = {k: _Step() for k in (0, *lengths)}
        """Steps of rows opened for drafting, by the number of drafts."""
        self.plain = _Step()
        """Steps of rows opened without a drafter."""
        self.plan, self.left = Plan(0), 0
        """The current plan, and the rounds until the next choice."""


class Controller:
    """Observes the steps of one model on one machine and plans the next ones."""

    def __init__(self, longest: int, *, clock: Callable[[], float] = perf_counter) -> None:
        """Choose among blocks of at most `longest` tokens; decoding loops time with `clock`."""
        self.clock = clock
        self.longest = min(longest, BLOCK_LENGTHS[-1])
        self._lengths = sorted({*(k for k in BLOCK_LENGTHS if k < longest), self.longest})
        self._start = min(FIRST_BLOCK, longest)
        self._accepted = [0.0] * self.longest
        self._judged = [0.0] * self.longest
        self._steps = self._discounted = 0
        self._sizes: dict[int, _Size] = {}

    def drafts(self, rows: int) -> bool:
        """Whether new rows are opened for drafting. The first are, the second are not."""
        size = self._size(rows)
        if size.plain.count < MIN_TRIALS or not self._known(size):
            return not self._known(size)
        k, speed = self._best(size)
        return k > 0 and speed * size.plain.seconds > size.plain.optimism(size.steps)

    def plan(self, rows: int) -> Plan:
        """Return the plan of the next round of rows opened for drafting."""
        size = self._size(rows)
        if not size.left:
            size.plan, size.left = self._plan(size)
        size.left -= 1
        return size.plan

    def observe_plain(self, rows: int, steps: int, seconds: float) -> None:
        """Record steps of one token of rows opened without a drafter."""
        size = self._size(rows)
        size.steps += steps
        self._steps += steps
        size.plain.observe(size.steps, seconds / steps)

    def observe(
        self, rows: int, tokens: int, seconds: float, *, drafting: float = 0.0, checked: float = 0.0
    ) -> None:
        """Record a round that drafted `tokens` for each row and verified `checked` of them.

        `seconds` is the whole round, `drafting` the part before verification.
        """
        size = self._size(rows)
        size.steps += 1
        self._steps += 1
        if tokens in size.blocks:
            size.blocks[tokens].observe(size.steps, seconds, drafting, checked)

    def observe_draft(self, tokens: int, accepted: int) -> None:
        """Record that `accepted` drafts of one row were accepted; unverified ones count as not."""
        self._discount()
        for place in range(min(accepted + 1, tokens)):
            self._judged[place] += 1
            self._accepted[place] += place < accepted

    def _discount(self) -> None:
        """Reduce the weight of earlier drafts, so that chances drift back to the prior."""
        if self._steps > self._discounted:
            kept = DECAY ** (self._steps - self._discounted)
            self._accepted = [kept * weight for weight in self._accepted]
            self._judged = [kept * weight for weight in self._judged]
            self._discounted = self._steps

    def _size(self, rows: int) -> _Size:
        key = rows.bit_length()
        if key not in self._sizes:
            self._sizes[key] = _Size(self._lengths)
        return self._sizes[key]

    def _known(self, size: _Size) -> bool:
        return min(size.blocks[0].count, size.blocks[self._start].count) >= MIN_TRIALS

    def _plan(self, size: _Size) -> tuple[Plan, int]:
        """Return the next plan and its number of rounds."""
        if not self._known(size):
            block = size.blocks[0].count > size.blocks[self._start].count
            return Plan(self._start if block else 0), 1
        k, speed = self._best(size)
        step = size.blocks[k]
        survival = self._draft_seconds(size) * speed / step.optimism(size.steps)
        return Plan(k, survival), min(PLAN_ROUNDS, max(MIN_TRIALS, int(step.weight_at(size.steps))))

    def _best(self, size: _Size) -> tuple[int, float]:
        """Return the best length and its optimistic tokens per second of a row."""
        self._discount()
        chances = [
            (accepted + PRIOR * PRIOR_WEIGHT) / (judged + PRIOR_WEIGHT)
            for accepted, judged in zip(self._accepted, self._judged, strict=True)
        ]
        tokens = [*accumulate(accumulate(chances, mul), initial=1.0)]
        speed = {
            k: tokens[k] / self._seconds(size, k) * step.optimism(size.steps)
            for k, step in size.blocks.items()
            if step.count or self._is_near(size, k)
        }
        best = max(speed, key=lambda k: speed[k])
        return best, speed[best]

    def _is_near(self, size: _Size, k: int) -> bool:
        """Whether the next length below or above was measured."""
        place = self._lengths.index(k)
        near = [*self._lengths[max(0, place - 1) : place], *self._lengths[place + 1 : place + 2]]
        return any(size.blocks[n].count for n in near)

    def _seconds(self, size: _Size, k: int) -> float:
        """Return the seconds of a round, extrapolated for a length that was not measured."""
        if size.blocks[k].count:
            return size.blocks[k].seconds
        near = min((n for n in self._lengths if size.blocks[n].count), key=lambda n: abs(n - k))
        seconds = size.blocks[near].seconds
        return max(seconds / 2, seconds + (k - near) * self._draft_seconds(size))

    def _draft_seconds(self, size: _Size) -> float:
        """Return the seconds that one more verified draft for each row takes."""
        block = max((size.blocks[k] for k in self._lengths), key=lambda step: step.count)
        if not block.checked:
            return 0.0
        return max(0.0, block.seconds - block.drafting - size.blocks[0].seconds) / block.checked
