"""Requests of clients, their progress and output, and the errors with which they are refused."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from outrider.decoding import Hypothesis, Request, Round, Update
from outrider.errors import OutriderError
from outrider.runtime import Result
from outrider.runtime.result import Work

if TYPE_CHECKING:
    from outrider.runtime.revision import Revision
    from outrider.text.glossary import Glossary


class Priority(IntEnum):
    """Share of decoding time, relative to a `low` request."""

    low = 1
    normal = 4
    high = 16


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """Texts to translate or continue, or a conversation to continue."""

    model: str
    texts: Sequence[str] = ()
    messages: Sequence[Mapping[str, str]] = ()
    """A conversation instead of texts; each message has `role` and `content`."""
    copies: int = 1
    """Answers to a conversation; answer i samples with `seed + i`."""
    source: str | None = None
    """Language of the texts, if the model needs it."""
    target: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `DecodeConfig`."""
    split: bool | None = None
    """Whether to translate sentence by sentence; None for the model's default."""
    guard: bool = False
    """Whether sentences with faults are decoded another way; not while tokens are streamed."""
    glossary: "Glossary | None" = None
    """Terms and their translations; not while tokens are streamed."""
    priority: Priority = Priority.normal
    seconds: float | None = None
    """Time limit, at most that of the server."""
    began: float | None = None
    """Start of the time limit by the clock of the event loop; None for now."""

    @property
    def characters(self) -> int:
        """Characters of all texts and messages."""
        contents = (message["content"] for message in self.messages)
        return sum(map(len, self.texts)) + sum(map(len, contents))


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of a piece of a text."""

    text: int
    piece: int
    tokens: tuple[int, ...]
    rounds: tuple[Round, ...] = ()
    """Drafts of these tokens and what was accepted; empty without drafting."""
    at: float = 0.0
    """Time of decoding, by `time.perf_counter`."""
    read: int = 0
    """Source and prompt tokens of the whole text."""


@dataclass(frozen=True, slots=True)
class Output:
    """Results of the first pieces of a text, or of the whole text."""

    text: int
    pieces: int
    """Number of finished pieces from the beginning."""
    results: list[Result]
    """Text of these pieces, best first."""
    done: bool
    """Whether the text is complete."""
    read: int = 0
    """Source and prompt tokens of the whole text."""


class RequestHandle:
    """An admitted request and its progress.

    Texts are divided into pieces (sentences), which finish in any order. The event loop owns the
    handle; the engine thread reads what to decode and sets `begun`, `queued` and `cancelled`.
    """

    def __init__(
        self,
        works: Sequence[Work],
        *,
        size: tuple[int, int] | None = None,
        priority: Priority = Priority.normal,
        streams: bool = False,
        seconds: float = 60.0,
        expires: float | None = None,
        on_piece: Callable[["RequestHandle", int], None] = lambda handle, piece: None,
    ) -> None:
        """Begin without progress.

        Args:
            works: Texts, divided into pieces.
            size: Tokens of all pieces, and of one, if more are added later; None to count them.
            priority: Share of decoding time.
            streams: Whether every token is published, or finished pieces only.
            seconds: Time limit.
            expires: End of the time limit by the clock of the event loop.
            on_piece: Called on the event loop when a piece is finished.
        """
        self.works = list(works)
        self.priority, self.streams = priority, streams
        self._seconds, self._expires, self._on_piece = seconds, expires, on_piece
        self.places: list[tuple[int, int]] = []
        """Text and piece within the text, for each piece."""
        self.requests: list[Request] = []
        self._hypotheses: list[list[list[Hypothesis] | None]] = []
        for text, work in enumerate(works):
            self.places += [(text, piece) for piece in range(len(work.requests))]
            self.requests += work.requests
            self._hypotheses.append([None] * len(work.requests))
        self.begun = 0
        """Pieces that left the queue."""
        self.queued = False
        """Whether it is in the queue."""
        self.left = len(self.requests)
        """Pieces without a result."""
        self.cancelled = False
        tokens = sum(request.needs[1] for request in self.requests)
        self.tokens, self.mean_tokens = size or (tokens, tokens // max(1, len(self.requests)))
        """Tokens of all pieces, and the mean of a piece."""
        self.written = 0
        """Tokens of all finished pieces."""
        self._events: asyncio.Queue[tuple[int, Update] | Exception] = asyncio.Queue()

    def add(self, text: int, work: Work) -> None:
        """Add the pieces of a text that had none."""
        self.works[text] = work
        self.places += [(text, piece) for piece in range(len(work.requests))]
        self._hypotheses[text] = [None] * len(work.requests)
        self.left += len(work.requests)
        self.requests += work.requests  # the engine thread reads them from here on

    @property
    def waiting(self) -> bool:
        """Whether `next` returns immediately."""
        return not self._events.empty()

    async def next(self) -> tuple[int, Update]:
        """Wait for the next update and return it with the number of its piece."""
        try:
            async with asyncio.timeout_at(self._expires):
                event = await self._events.get()
        except TimeoutError as error:
            message = f"the request did not finish within {self._seconds:g} seconds"
            raise LateError(f"{message}; try again later", retry_after=self._seconds) from error
        if isinstance(event, Exception):
            raise event
        piece, update = event
        if update.hypotheses is not None:
            text, place = self.places[piece]
            self._hypotheses[text][place] = update.hypotheses
            self.written += sum(len(hypothesis.tokens) for hypothesis in update.hypotheses)
            self.left -= 1
        return event

    def receive(self, event: tuple[int, Update] | Exception) -> None:
        """Take an event of the engine thread; called on the event loop."""
        if not isinstance(event, Exception) and event[1].hypotheses is not None:
            self._on_piece(self, event[0])
        self._events.put_nowait(event)

    def piece_text(self, number: int) -> str:
        """Return the best text of a finished piece."""
        text, piece = self.places[number]
        hypotheses = self._hypotheses[text][piece]
        assert hypotheses is not None
        return self.works[text].join([hypotheses])[0].text

    def replace(self, number: int, hypotheses: list[Hypothesis]) -> None:
        """Replace the hypotheses of a finished piece."""
        text, piece = self.places[number]
        self._hypotheses[text][piece] = hypotheses

    def revision(self, number: int) -> "Revision | None":
        """Return the revision of a finished piece."""
        text, piece = self.places[number]
        revise, hypotheses = self.works[text].revise, self._hypotheses[text][piece]
        assert hypotheses is not None
        return None if revise is None else revise(piece, hypotheses)

    def beginning(self, text: int) -> tuple[int, list[Result]]:
        """Return the number of finished pieces at the beginning of a text, and their results."""
        done: list[list[Hypothesis]] = []
        for hypotheses in self._hypotheses[text]:
            if hypotheses is None:
                break
            done.append(hypotheses)
        return len(done), self.works[text].join(done)

    def results(self) -> list[list[Result]]:
        """Return the results of all texts."""
        return [self.beginning(text)[1] for text in range(len(self.works))]


class RefusalError(OutriderError):
    """A request that the server refuses before or without decoding."""

    status = 422
    kind = "invalid_request_error"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))


class UnauthorisedError(RefusalError):
    """The API key is missing or wrong."""

    status, kind = 401, "authentication_error"


class ForbiddenError(RefusalError):
    """The server does not offer this."""

    status = 403


class UnknownError(RefusalError):
    """The model or language pair does not exist."""

    status, kind = 404, "not_found_error"


class TooLargeError(RefusalError):
    """The body or the text exceeds its limit."""

    status = 413


class SlowError(RefusalError):
    """The client takes too long to send its request."""

    status = 408


class TooManyError(RefusalError):
    """The client exceeds the rate limit of its key."""

    status, kind = 429, "rate_limit_error"


class BusyError(RefusalError):
    """The server is overloaded or shutting down."""

    status, kind = 503, "overloaded_error"


class BrokenError(RefusalError):
    """A model or the key file cannot be used."""

    status, kind = 503, "server_error"


class LateError(BusyError):
    """An admitted request exceeded its deadline."""
