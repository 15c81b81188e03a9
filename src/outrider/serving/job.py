"""One request on its way through the queue and the session of its model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import count

from outrider.decoding import Hypothesis, Request, Round

__all__ = ["Done", "Event", "Failed", "Job", "Priority", "Said"]

_numbers = count(1)


class Priority(IntEnum):
    """How many turns a request gets for one of a `low` one."""

    low = 1
    normal = 4
    high = 16


@dataclass(frozen=True, slots=True)
class Said:
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


Event = Said | Done | Failed


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
