"""Which way was really faster, drafting or plain steps, for batches of like size.

A policy foretells what rounds cost from calls timed one by one. A batch has costs that no such
call shows: rows that wait for the unluckiest one, caches that are cold, a machine that is shared.
So what batches took is remembered, and where the foretelling was wrong it is overruled. Either way
gives the same text (`tandem.may_choose`), so trying the other one now and then costs nothing but a
little time.
"""

from collections import Counter, defaultdict, deque

import numpy as np

__all__ = ["BatchSpeeds"]

TRIED = 6
"""Batches of each way before the faster one is known."""
KEPT = 32
"""Batches remembered of each way: short texts take more time a token, so few would mislead."""
RETRY = 24
"""Every so many batches the slower way is tried again."""
JUDGED = 8
"""Batches after which they are compared again."""
OVERRULED = 1.08
"""How much slower drafting must have been for plain steps to take over: it was foretold to pay."""


class BatchSpeeds:
    """Seconds a token of the batches decoded so far."""

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[int, bool], deque[float]] = defaultdict(
            lambda: deque(maxlen=KEPT)
        )
        self._count: Counter[tuple[int, bool]] = Counter()
        self._pays: dict[int, bool] = {}

    def note(self, rows: int, *, drafting: bool, tokens: int, seconds: float) -> None:
        """Remember a batch; not the first of its kind, which prepares kernels.

        One that said nothing has no pace, and does not count.
        """
        if not tokens:
            return
        way = rows.bit_length(), drafting
        self._count[way] += 1
        if self._count[way] > 1:
            self._seen[way].append(seconds / tokens)

    def drafting(self, rows: int) -> bool:
        """Whether to draft for a batch of so many rows, by what was seen."""
        size = rows.bit_length()
        drafted, plain = self._count[size, True], self._count[size, False]
        if min(drafted, plain) <= TRIED:
            return drafted <= plain
        number = drafted + plain
        if size not in self._pays or number % JUDGED == 0:
            seen = self._seen
            drafted_s, plain_s = (float(np.median(seen[size, way])) for way in (True, False))
            self._pays[size] = drafted_s <= OVERRULED * plain_s
        return self._pays[size] != (number % RETRY == 0)

    def objection(self, rows: int) -> str | None:
        """Return why not to draft for a batch of so many rows; None where to draft."""
        if self.drafting(rows):
            return None
        slower = self._pays.get(rows.bit_length()) is False
        return "drafting was slower" if slower else "timed both ways, to compare"
