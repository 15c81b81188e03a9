"""Whether to draft and how many tokens, learned while decoding.

    tokens of a row in a round of k drafts = 1 + sum_{i <= k} a_1 ... a_i
    k = argmax (tokens of a row) / (seconds of the round) * (1 + OPTIMISM / sqrt(n_k))

a_i is the chance that draft i is accepted if all before it are. Seconds and chances are means in
which a round loses weight with every later one; n_k is the weight of the rounds of k drafts. So a
length that was not used for long is tried again, the more seldom the slower it was (discounted
upper confidence bounds, Garivier and Moulines, 2011, arXiv:0805.3415). Nothing is measured before
the first sentence: plain steps and short blocks take turns at its beginning.

The caller asks only where every answer gives the same text (`tandem.may_choose`).
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from time import perf_counter
from typing import NamedTuple

__all__ = ["Controller", "Plan"]

LENGTHS = (2, 4, 8)
"""Block lengths to choose from."""
START = 4
"""Length of the first blocks."""
TRIED = 2
"""Plain steps and first blocks that take turns at the beginning; the first prepares kernels."""
YOUNG = 3
"""Up to so many steps the least time counts: first uses and other programs only add time."""
CLIP = 1.25
"""A step counts for at most so many times the mean, so that a pause of the machine is forgotten."""
KEPT = 1 - 1 / 256
"""Weight that a step keeps after one more."""
OPTIMISM = 0.25
"""How much faster something that was seen once may be."""
ROUNDS = 8
"""Rounds after which a length that is well known is chosen anew."""
LEAST_WEIGHT = 0.02
"""Weight below which a length is as good as unknown."""
PRIOR, PRIOR_WEIGHT = 0.6, 1.0
"""Chance of a draft before any was seen, and the number of drafts that this counts for."""


class Plan(NamedTuple):
    """What a round does."""

    tokens: int
    """How many to draft; 0 for a plain step."""
    min_survival: float = 0.0
    """Chance of being accepted that a draft needs to be worth verifying: with a lower one it brings
    fewer tokens in the time that it takes than a round does."""


class _Step:
    """Means of one kind of step."""

    def __init__(self) -> None:
        self.count, self.at = 0, 0
        self.weight = 0.0
        self.seconds = math.inf
        self.drafting = self.checked = 0.0

    def see(self, at: int, seconds: float, drafting: float = 0.0, checked: float = 0.0) -> None:
        """Learn from step number `at` of this size."""
        seconds = max(seconds, 1e-9)  # a coarse clock may not move
        self.weight = self.weighs(at) + 1
        self.count, self.at = self.count + 1, at
        if self.count <= YOUNG:
            if seconds <= self.seconds:
                self.seconds, self.drafting, self.checked = seconds, drafting, checked
            return
        most, rate = CLIP * self.seconds, 1 / self.weight
        self.seconds += rate * (min(seconds, most) - self.seconds)
        self.drafting += rate * (min(drafting, most) - self.drafting)
        self.checked += rate * (checked - self.checked)

    def weighs(self, at: int) -> float:
        return self.weight * KEPT ** (at - self.at)

    def optimism(self, at: int) -> float:
        weight = max(LEAST_WEIGHT, self.weighs(at)) if self.count else 1.0
        return 1 + OPTIMISM / math.sqrt(weight)


class _Size:
    """What is known of steps with like numbers of rows."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.steps = 0
        self.blocks = {k: _Step() for k in (0, *lengths)}
        """Steps of rows that were opened for drafting, by the number of drafts."""
        self.plain = _Step()
        """Steps of rows that were opened without a drafter."""
        self.plan, self.left = Plan(0), 0
        """What is done, and in how many rounds more."""


class Controller:
    """Observes the steps of one model on one machine, and chooses the next ones."""

    def __init__(self, longest: int, *, clock: Callable[[], float] = perf_counter) -> None:
        """Choose among blocks of at most `longest` tokens; `clock` tells the loops the time."""
        self.clock = clock
        self.longest = min(longest, LENGTHS[-1])
        self._lengths = sorted({*(k for k in LENGTHS if k < longest), self.longest})
        self._start = min(START, longest)
        self._accepted = [0.0] * self.longest
        self._judged = [0.0] * self.longest
        self._steps = self._faded = 0
        self._sizes: dict[int, _Size] = {}

    def drafts(self, rows: int) -> bool:
        """Whether rows that come now are opened for drafting: the first, but not the second."""
        size = self._size(rows)
        if size.plain.count < TRIED or not self._known(size):
            return not self._known(size)
        k, speed = self._best(size)
        return k > 0 and speed * size.plain.seconds > size.plain.optimism(size.steps)

    def plan(self, rows: int) -> Plan:
        """Return what the next round does, for rows that were opened for drafting."""
        size = self._size(rows)
        if not size.left:
            size.plan, size.left = self._plan(size)
        size.left -= 1
        return size.plan

    def see_plain(self, rows: int, steps: int, seconds: float) -> None:
        """Learn from steps of one token of rows that were opened without a drafter."""
        size = self._size(rows)
        size.steps += steps
        self._steps += steps
        size.plain.see(size.steps, seconds / steps)

    def see(
        self, rows: int, tokens: int, seconds: float, *, drafting: float = 0.0, checked: float = 0.0
    ) -> None:
        """Learn from a round that drafted `tokens` for each row and verified `checked` of them.

        `seconds` is all of it, `drafting` the part before verification.
        """
        size = self._size(rows)
        size.steps += 1
        self._steps += 1
        if tokens in size.blocks:
            size.blocks[tokens].see(size.steps, seconds, drafting, checked)

    def see_draft(self, tokens: int, accepted: int) -> None:
        """Learn from one row that `accepted` of its drafts hold; those not verified do not."""
        self._fade()
        for place in range(min(accepted + 1, tokens)):
            self._judged[place] += 1
            self._accepted[place] += place < accepted

    def _fade(self) -> None:
        """Let drafts of before lose weight, so that chances return to what they were at first."""
        if self._steps > self._faded:
            kept = KEPT ** (self._steps - self._faded)
            self._accepted = [kept * one for one in self._accepted]
            self._judged = [kept * one for one in self._judged]
            self._faded = self._steps

    def _size(self, rows: int) -> _Size:
        key = rows.bit_length()
        if key not in self._sizes:
            self._sizes[key] = _Size(self._lengths)
        return self._sizes[key]

    def _known(self, size: _Size) -> bool:
        return min(size.blocks[0].count, size.blocks[self._start].count) >= TRIED

    def _plan(self, size: _Size) -> tuple[Plan, int]:
        """Return what is done next, and in how many rounds."""
        if not self._known(size):
            block = size.blocks[0].count > size.blocks[self._start].count
            return Plan(self._start if block else 0), 1
        k, speed = self._best(size)
        step = size.blocks[k]
        survival = self._one_more(size) * speed / step.optimism(size.steps)
        return Plan(k, survival), min(ROUNDS, max(TRIED, int(step.weighs(size.steps))))

    def _best(self, size: _Size) -> tuple[int, float]:
        """Return the best length, and the tokens of a row in a second that it may bring."""
        self._fade()
        chances = [
            (accepted + PRIOR * PRIOR_WEIGHT) / (judged + PRIOR_WEIGHT)
            for accepted, judged in zip(self._accepted, self._judged, strict=True)
        ]
        tokens = [*accumulate(accumulate(chances, mul), initial=1.0)]
        speed = {
            k: tokens[k] / self._foresee(size, k) * step.optimism(size.steps)
            for k, step in size.blocks.items()
            if step.count or self._is_near(size, k)
        }
        best = max(speed, key=lambda k: speed[k])
        return best, speed[best]

    def _is_near(self, size: _Size, k: int) -> bool:
        """Whether the next length below or above was seen."""
        place = self._lengths.index(k)
        near = [*self._lengths[max(0, place - 1) : place], *self._lengths[place + 1 : place + 2]]
        return any(size.blocks[n].count for n in near)

    def _foresee(self, size: _Size, k: int) -> float:
        """Return the seconds of a round; those of a length not seen follow from the nearest."""
        if size.blocks[k].count:
            return size.blocks[k].seconds
        near = min((n for n in self._lengths if size.blocks[n].count), key=lambda n: abs(n - k))
        seconds = size.blocks[near].seconds
        return max(seconds / 2, seconds + (k - near) * self._one_more(size))

    def _one_more(self, size: _Size) -> float:
        """Return the seconds of one verified draft more for each row."""
        block = max((size.blocks[k] for k in self._lengths), key=lambda one: one.count)
        if not block.checked:
            return 0.0
        return max(0.0, block.seconds - block.drafting - size.blocks[0].seconds) / block.checked
