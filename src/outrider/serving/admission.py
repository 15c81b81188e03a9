"""Who is let in: memory has a bound, and whoever would not be done in time is told so at once.

    time of a newcomer = (own + sum_j min(left_j, max(own, piece_j))) / tokens a second

Jobs take turns (`fair_queue.py`), a piece each: job j, which has `left_j` tokens to go, delays a
newcomer by no more than the newcomer asks for itself, or by one piece. The speed is what the model
did lately; while it was not kept busy it can only have been faster.

One request on its way through the queue and the session of its model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from math import exp, log
from time import monotonic

from outrider.decoding import Hypothesis, Request, Round
from outrider.serving.answers import BusyError
from outrider.serving.limits import Limits

__all__ = ["Admission", "Delta", "Done", "Event", "Failed", "Job", "Priority"]

_numbers = count(1)


class Priority(IntEnum):
    """How many turns a request gets for one of a `low` one."""

    low = 1
    normal = 4
    high = 16


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a text goes on."""

    piece: int
    tokens: tuple[int, ...]
    rounds: tuple[Round, ...] = ()
    """What was drafted for these tokens; empty where they were said one by one."""
    at: float = 0.0
    """When they were said, by `time.perf_counter`."""


@dataclass(frozen=True, slots=True)
class Done:
    """A piece of a text is done."""

    piece: int
    hypotheses: list[Hypothesis]


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing more will come."""

    error: Exception


Event = Delta | Done | Failed


@dataclass(eq=False)
class Job:
    """Pieces of texts that somebody waits for together."""

    requests: Sequence[Request]
    needs: Sequence[tuple[int, int]]
    """Rows and tokens that each takes at most."""
    hear: Callable[[Event], None]
    """Told the news, on the thread of whoever asked."""
    priority: Priority = Priority.normal
    streams: bool = False
    """Whether every token is news, or only a piece that is done."""
    taken: int = 0
    """Pieces that have left the queue."""
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.number = next(_numbers)
        self.tokens = sum(tokens for _, tokens in self.needs)
        """What all pieces take together."""
        self.piece = self.tokens // max(1, len(self.needs))
        """What one takes in the mean."""


WINDOW = 1.0
"""Seconds over which the speed is measured."""
WEIGHT = 0.5
"""What the newest window counts."""
LEARNED = 0.02
"""What the newest request counts in the tokens of a character."""
FRESH = 0.02
"""Seconds for which a look at the books is good enough."""
PROMISE = 0.5
"""Part of its time that a request may be expected to take; the rest is for being wrong."""
SURE = 3
"""Windows after which the speed is believed; before, when short texts end first, it is too low."""


class Admission:
    """The books of one model: who is in, what they still need, and how fast it goes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left: dict[Job, int] = {}
        self.tokens = 0
        """What all that are in still need."""
        self.speed = 0.0
        """Tokens a second, of those that were asked for; 0 before anything was measured."""
        self._windows = 0
        """Over which it was measured."""
        self._began: float | None = None
        self._done = 0.0
        self._tokens_each = 1.0
        """Tokens for each character, lately."""
        self._usual = 0.0
        """Tokens of a request, lately: the mean of their logarithm, which a book hardly moves."""
        self._full = False
        self._looked = 0.0
        self._verdict: BusyError | None = None

    def __len__(self) -> int:
        return len(self._left)

    def check(self, tokens: int, seconds: float) -> None:
        """Refuse what finds no room or would come too late."""
        if (error := self._objection(tokens, seconds)) is not None:
            raise error

    def full(self) -> BusyError | None:
        """Return how a usual request would be refused now, before anything is known of it."""
        if monotonic() - self._looked > FRESH:
            self._looked = monotonic()
            self._verdict = self._objection(int(exp(self._usual)), self._limits.seconds)
        return self._verdict

    def _objection(self, tokens: int, seconds: float) -> BusyError | None:
        if not self._left:
            return None
        if self.tokens + tokens > self._limits.queue_tokens:
            again = self.tokens / self.speed if self.speed else seconds
            message = "too many requests are waiting; try again later"
            return BusyError(message, retry_after=min(again, 60))
        expected = self.expected(tokens)
        if expected <= seconds * (PROMISE if self._windows >= SURE else 1.0):
            return None
        message = "so many requests are waiting that this one would not be done in time"
        return BusyError(f"{message}; try again later", retry_after=min(expected, 60))

    def expected(self, tokens: int) -> float:
        """Return the seconds that a newcomer would take; 0 where nothing is known."""
        if not self.speed:
            return 0.0
        others = sum(min(left, max(tokens, job.piece)) for job, left in self._left.items())
        return (tokens + others) / self.speed

    def guess(self, characters: int) -> int:
        """Return the tokens that texts will need, from what others needed, before they are read."""
        return int(characters * self._tokens_each)

    def learn(self, characters: int, tokens: int) -> None:
        """Note what texts of so many characters needed."""
        if characters and tokens:
            self._tokens_each += LEARNED * (tokens / characters - self._tokens_each)
            self._usual += LEARNED * (log(tokens) - self._usual)

    def enter(self, job: Job) -> None:
        """Write a job into the books."""
        if not self._left:
            self._began = None  # many begin together: the time to the first end tells no speed
        self._left[job] = job.tokens
        self.tokens += job.tokens
        self._full = self._full or self.tokens > self._limits.batch_tokens

    def piece(self, job: Job, piece: int) -> None:
        """Note that a piece of a job is done."""
        tokens = job.needs[piece][1]
        if job in self._left:
            self._left[job] -= tokens
            self.tokens -= tokens
        now = monotonic()
        if self._began is None:
            self._began, self._done = now, 0.0
            return
        self._done += tokens
        if now - self._began >= WINDOW:
            self._measure(self._done / (now - self._began))

    def leave(self, job: Job) -> None:
        """Strike a job from the books, done or not."""
        self.tokens -= self._left.pop(job, 0)

    def _measure(self, speed: float) -> None:
        self._windows += 1
        if not self.speed or not self._full:
            self.speed = max(self.speed, speed)
        else:
            self.speed += WEIGHT * (speed - self.speed)
        self._began, self._done = monotonic(), 0.0
        self._full = self.tokens > self._limits.batch_tokens
