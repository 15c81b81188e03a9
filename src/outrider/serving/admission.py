"""Who is let in: memory has a bound, and whoever would not be done in time is told so at once.

    time of a newcomer = (own + sum_j min(own, what job j has left)) / tokens a second

Jobs take turns (`fair_queue.py`), so each delays a newcomer by no more than it asks for itself. The
speed is what the model did lately; while it was not kept busy it can only have been faster.
"""

from time import monotonic

from outrider.serving.job import Job
from outrider.serving.limits import Limits
from outrider.serving.refusal import BusyError

__all__ = ["Admission"]

WINDOW = 1.0
"""Seconds over which the speed is measured."""
WEIGHT = 0.5
"""What the newest window counts."""
PROMISE = 0.5
"""Part of its time that a request may be expected to take; the rest is for being wrong."""


class Admission:
    """The books of one model: who is in, what they still need, and how fast it goes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left: dict[Job, int] = {}
        self.tokens = 0
        """What all that are in still need."""
        self.speed = 0.0
        """Tokens a second, of those that were asked for; 0 before anything was measured."""
        self._began = self._done = 0.0
        self._full = False

    def __len__(self) -> int:
        return len(self._left)

    def check(self, tokens: int, seconds: float) -> None:
        """Refuse what finds no room or would come too late."""
        if self._left and self.tokens + tokens > self._limits.queue_tokens:
            again = self.tokens / self.speed if self.speed else seconds
            message = "too many requests are waiting; try again later"
            raise BusyError(message, retry_after=min(again, 60))
        expected = self.expected(tokens)
        if self._left and expected > PROMISE * seconds:
            message = "so many requests are waiting that this one would not be done in time"
            raise BusyError(f"{message}; try again later", retry_after=min(expected, 60))

    def expected(self, tokens: int) -> float:
        """Return the seconds that a newcomer would take; 0 where nothing is known."""
        if not self.speed:
            return 0.0
        others = sum(min(tokens, left) for left in self._left.values())
        return (tokens + others) / self.speed

    def enter(self, job: Job) -> None:
        """Write a job into the books."""
        if not self._left:
            self._began, self._done = monotonic(), 0.0
        self._left[job] = job.tokens
        self.tokens += job.tokens
        self._full = self._full or self.tokens > self._limits.batch_tokens

    def piece(self, job: Job, piece: int) -> None:
        """Note that a piece of a job is done."""
        tokens = job.needs[piece][1]
        if job in self._left:
            self._left[job] -= tokens
            self.tokens -= tokens
        self._done += tokens
        elapsed = monotonic() - self._began
        if elapsed >= WINDOW:
            self._measure(self._done / elapsed)

    def leave(self, job: Job) -> None:
        """Strike a job from the books, done or not."""
        self.tokens -= self._left.pop(job, 0)

    def _measure(self, speed: float) -> None:
        if not self.speed or not self._full:
            self.speed = max(self.speed, speed)
        else:
            self.speed += WEIGHT * (speed - self.speed)
        self._began, self._done = monotonic(), 0.0
        self._full = self.tokens > self._limits.batch_tokens
