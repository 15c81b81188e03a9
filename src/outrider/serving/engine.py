"""What an app asks of the models: texts in, and results, or a stream of news, out.

    engine = Engine([read_spec("zh-en=models/opus")])
    results = await engine.answer(Ask(model="opus", texts=("你好。",)))
    async for event in engine.stream(Ask(model="opus", texts=("你好。",))):
        ...

For one event loop. Texts are taken apart and put together on threads beside it, and decoded on the
thread of their model; whoever stops waiting (a cancelled task, a closed stream) is called off.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from outrider.decoding import DecodeSettings, Request, Round
from outrider.decoding.request import needs
from outrider.errors import ConfigError, UnsupportedError
from outrider.runtime import Generator, Result, Translator
from outrider.runtime.options import call_settings
from outrider.runtime.result import Work
from outrider.serving.admission import Delta, Done, Priority
from outrider.serving.answers import BusyError, TooLargeError
from outrider.serving.driver import Events
from outrider.serving.limits import Limits
from outrider.serving.registry import Loaded, ModelRegistry, Spec
from outrider.serving.ticket import Outputs, RequestHandle

__all__ = ["Ask", "Engine", "Finished", "Progress"]

T = TypeVar("T")

BRIEF = 256
"""Tokens that are written out on the event loop: less than a millisecond."""
SWEEP = 1.0
"""Seconds between two looks for idle models, at most."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request of a client."""

    model: str
    texts: Sequence[str] = ()
    """What to translate, or to continue."""
    messages: Sequence[Mapping[str, str]] = ()
    """A conversation to continue instead, `role` and `content` each."""
    copies: int = 1
    """How many answers to it; answer number i draws with `seed + i`."""
    source: str | None = None
    """Language of the texts, where the model wants to be told."""
    target: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `DecodeConfig`."""
    split: bool | None = None
    """Whether a translator translates sentence by sentence; None for as the model asks."""
    priority: Priority = Priority.normal
    seconds: float | None = None
    """Time it has; the server's bound where nobody says, or says more."""
    began: float | None = None
    """When that time began, by the clock of the event loop; None for now."""

    @property
    def characters(self) -> int:
        """How much text it is."""
        return sum(map(len, self.texts)) + sum(len(one["content"]) for one in self.messages)


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens that a piece of a text has said."""

    text: int
    piece: int
    tokens: tuple[int, ...]
    rounds: tuple[Round, ...] = ()
    """What was drafted for them and what became of it; empty where they were said one by one."""
    at: float = 0.0
    """When they were said, by `time.perf_counter`."""
    read: int = 0
    """Tokens that the model was given for the whole text."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A text has grown by whole pieces: all of it, where `done`."""

    text: int
    pieces: int
    """How many of its pieces, from the first on, are done."""
    results: list[Result]
    """What they come to, best first."""
    done: bool
    read: int = 0
    """Tokens that the model was given for it."""


class Engine:
    """Answers requests with the models it has."""

    def __init__(
        self,
        specs: Sequence[Spec],
        limits: Limits | None = None,
        *,
        memory: int | None = None,
        idle: float | None = None,
        place: Mapping[str, Any] | None = None,
    ) -> None:
        """Know some models; see `ModelRegistry` for the arguments."""
        self.limits = limits or Limits()
        self.shelf = ModelRegistry(
            specs, self.limits, deliver=self._deliver, memory=memory, idle=idle, place=place
        )
        self._idle = idle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="outrider-text")
        self._preparing = 0
        self._sweeper: asyncio.Task[None] | None = None
        self.closing = self.ready = False

    async def start(self, *, load: bool = True) -> None:
        """Load the models, as far as the budget goes, and begin to look for idle ones."""
        self._loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._sweeper = asyncio.create_task(self._sweep(min(SWEEP, self._idle)))
        for name in self.shelf.specs if load else ():
            with suppress(BusyError):
                async with self.shelf.hold(name):
                    pass
        self.ready = True

    async def close(self) -> None:
        """Stop everything; whoever still waits is told so."""
        self.closing, self.ready = True, False
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.shelf.close()
        await asyncio.sleep(0)  # the last news are on their way
        self._workers.shutdown(wait=False)

    def full(self) -> BusyError | None:
        """Return how a usual request would be refused, whatever model it asks for, if it would."""
        loaded = self.shelf.loaded
        if len(loaded) < len(self.shelf.specs):
            return None
        refused = [one.admission.full() for one in loaded.values()]
        return None if None in refused else refused[0]

    async def answer(self, ask: Ask) -> list[list[Result]]:
        """Return what each text came to, best first."""
        async with self._let_in(ask, streams=False) as (works, ticket):
            growth = Outputs(works)
            while ticket.left:
                event = await ticket.next()
                if isinstance(event, Done):
                    growth.note(event.piece, event.hypotheses)
            if growth.tokens < BRIEF:  # sooner done than handed to another thread
                return growth.whole()
            return await self.beside(growth.whole)

    async def stream(
        self, ask: Ask, *, tokens: bool = True
    ) -> AsyncGenerator[Progress | Finished, None]:
        """Yield what happens to the texts: tokens as they are said, and texts as they grow.

        Close it (`contextlib.aclosing`) where it is left before its end. Without `tokens` only
        whole pieces are told, which costs less.
        """
        async with self._let_in(ask, streams=tokens) as (works, ticket):
            growth = Outputs(works)
            read = [sum(map(_length, work.requests)) for work in works]
            for text, work in enumerate(works):
                if not work.requests:
                    yield Finished(text, 0, work.join([]), done=True)
            while ticket.left:
                event = await ticket.next()
                text, piece = growth.place(event.piece)
                if isinstance(event, Delta):
                    yield Progress(text, piece, event.tokens, event.rounds, event.at, read[text])
                    continue
                growth.note(event.piece, event.hypotheses)
                pieces, results = await self.beside(growth.beginning, text)
                done = pieces == len(works[text].requests)
                if pieces > piece:  # else an earlier one is still being said
                    yield Finished(text, pieces, results, done, read[text])

    @asynccontextmanager
    async def _let_in(
        self, ask: Ask, *, streams: bool
    ) -> AsyncIterator[tuple[Sequence[Work], RequestHandle]]:
        """Let a request in, and see to it that it leaves."""
        if self.closing or self._loop is None:
            raise BusyError("the server is not up; try again", retry_after=5)
        seconds = min(self.limits.seconds, ask.seconds or self.limits.seconds)
        now = self._loop.time()
        began = now if ask.began is None else ask.began
        async with self.shelf.hold(ask.model, seconds=began + seconds - now) as loaded:
            works, ticket = await self._enter(ask, loaded, seconds, streams, began)
            try:
                if ticket.left:
                    loaded.driver.submit(ticket.job)
                yield works, ticket
            finally:
                ticket.leave()
                if ticket.left:
                    loaded.driver.cancel(ticket.job)

    async def _enter(
        self, ask: Ask, loaded: Loaded, seconds: float, streams: bool, began: float
    ) -> tuple[Sequence[Work], RequestHandle]:
        """Check a request, take its texts apart, and write it into the books."""
        limits, characters = self.limits, ask.characters
        assert self._loop is not None
        left = began + seconds - self._loop.time()
        if len(ask.texts) > limits.texts:
            raise TooLargeError(f"{len(ask.texts)} texts; send at most {limits.texts} at once")
        if characters > limits.characters:
            most = limits.characters
            raise TooLargeError(f"{characters:,} characters; send at most {most:,} at once")
        if self._preparing and self._preparing + characters > limits.preparing:
            raise BusyError("too many texts are being read; try again", retry_after=1)
        # Who will be refused is better refused unread.
        loaded.admission.check(loaded.admission.guess(characters), left)
        self._preparing += characters
        try:
            works, requests, sizes = await self.beside(_prepare, ask, loaded, limits)
        finally:
            self._preparing -= characters
        tokens = sum(one for _, one in sizes)
        loaded.admission.learn(characters, tokens)
        loaded.admission.check(tokens, left)
        return works, RequestHandle(
            requests,
            sizes,
            loaded.admission,
            priority=ask.priority,
            streams=streams,
            seconds=seconds,
            began=began,
        )

    async def beside(self, function: Callable[..., T], *given: Any) -> T:
        """Call something that takes its time on a thread beside the event loop."""
        assert self._loop is not None
        return await self._loop.run_in_executor(self._workers, function, *given)

    def _deliver(self, news: Events) -> None:
        """Hand news of a model's thread over to the event loop."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_hand_out, news)

    async def _sweep(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            await self.shelf.drop_idle()


def _hand_out(news: Events) -> None:
    for job, event in news:
        job.hear(event)


def _prepare(
    ask: Ask, loaded: Loaded, limits: Limits
) -> tuple[list[Work], list[Request], list[tuple[int, int]]]:
    """Take texts apart, and say what every piece needs."""
    model = loaded.model
    config = call_settings(model.backend, model.defaults, ask.options)
    _check(config, limits)
    if loaded.drafts and "mode" not in ask.options and is_plain(config):
        config = config.changed(mode="tandem")
    if ask.messages:
        works = _converse(ask, loaded, config)
    elif isinstance(model, Translator):
        if loaded.spec.pair is None:
            model = model.between(ask.source, ask.target)
        works = model.works(ask.texts, config, split=ask.split)
    else:
        works = model.works(ask.texts, config)
    requests = [replace(request, config=config) for work in works for request in work.requests]
    return works, requests, [needs(model.backend, request, config) for request in requests]


def _converse(ask: Ask, loaded: Loaded, config: DecodeSettings) -> list[Work]:
    """Turn a conversation into prompts; the template writes the start token itself."""
    if not isinstance(loaded.model, Generator):
        message = f"{loaded.spec.name} translates and holds no conversations"
        raise UnsupportedError(f"{message}; use /translate or /v1/completions")
    if loaded.chat is None:
        message = f"{loaded.spec.name} has no chat template"
        raise UnsupportedError(f"{message}; use /v1/completions")
    first, *rest = loaded.chat.encode(ask.messages) or [loaded.model.backend.start]
    return [
        loaded.model.work(Request(start=first, prompt=rest, seed=config.seed + number))
        for number in range(ask.copies)
    ]


def _length(request: Request) -> int:
    return len(request.source) + len(request.prompt)


def is_plain(config: DecodeSettings) -> bool:
    """Whether tandem decoding says the same, and no more is asked than what it says."""
    return config.mode == "ar" and config.strategy == "greedy" and not config.scores


def _check(config: DecodeSettings, limits: Limits) -> None:
    """Refuse settings that would let one request take the server."""
    bounds = {
        "beams": (config.beams if config.strategy == "beam" else 1, limits.rows_each),
        "candidates": (config.candidates, limits.rows_each),
        "max_new_tokens": (config.max_new_tokens or 1, limits.new_tokens),
        "min_new_tokens": (config.min_new_tokens, limits.new_tokens),
        "iterations": (config.iterations, limits.rows_each),
    }
    for key, (value, most) in bounds.items():
        if value > most:
            raise ConfigError(key, f"got {value}; this server allows at most {most}")
