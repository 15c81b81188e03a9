"""What a client holds while it waits: its job, its news, and the time it has."""

import asyncio
from collections.abc import Sequence

from outrider.decoding import Hypothesis, Request
from outrider.runtime import Result
from outrider.runtime.result import Work
from outrider.serving.admission import Admission, Delta, Done, Event, Failed, Job, Priority
from outrider.serving.answers import LateError

__all__ = ["Outputs", "RequestHandle"]


class RequestHandle:
    """One request that was let in. For one event loop."""

    def __init__(
        self,
        requests: Sequence[Request],
        needs: Sequence[tuple[int, int]],
        admission: Admission,
        *,
        priority: Priority,
        streams: bool,
        seconds: float,
        began: float,
    ) -> None:
        """Write it into the books; it began by the clock of the loop, and has so many seconds."""
        self.job = Job(requests, needs, self._hear, priority, streams)
        self.left = len(requests)
        """Pieces whose end has not been heard of."""
        self._seconds, self._admission = seconds, admission
        self._expires = began + seconds
        self._news: asyncio.Queue[Event] = asyncio.Queue()
        admission.enter(self.job)

    async def next(self) -> Delta | Done:
        """Wait for news; what went wrong is raised."""
        try:
            async with asyncio.timeout_at(self._expires):
                event = await self._news.get()
        except TimeoutError:
            message = f"the request was not done within {self._seconds:g} seconds"
            raise LateError(f"{message}; try again later", retry_after=self._seconds) from None
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Done):
            self.left -= 1
        return event

    def leave(self) -> None:
        """Strike it from the books."""
        self._admission.leave(self.job)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Done):
            self._admission.piece(self.job, event.piece)
        self._news.put_nowait(event)


class Outputs:
    """Texts that grow piece by piece, each from its beginning on, in whatever order pieces end."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works
        self._places = [
            (text, piece) for text, work in enumerate(works) for piece in range(len(work.requests))
        ]
        self._found: list[list[list[Hypothesis] | None]] = [
            [None] * len(work.requests) for work in works
        ]
        self.tokens = 0
        """Of all that is there."""

    def place(self, number: int) -> tuple[int, int]:
        """Return of which text a piece is, and which of its pieces."""
        return self._places[number]

    def note(self, number: int, hypotheses: list[Hypothesis]) -> None:
        """Keep what a piece came to."""
        text, piece = self._places[number]
        self._found[text][piece] = hypotheses
        self.tokens += sum(len(one.tokens) for one in hypotheses)

    def beginning(self, text: int) -> tuple[int, list[Result]]:
        """Return how many pieces of a text are done, from the first on, and what they come to."""
        done: list[list[Hypothesis]] = []
        for one in self._found[text]:
            if one is None:
                break
            done.append(one)
        return len(done), self._works[text].join(done)

    def whole(self) -> list[list[Result]]:
        """Return what all texts came to."""
        return [self.beginning(text)[1] for text in range(len(self._works))]
