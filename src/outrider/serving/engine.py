"""Asynchronous interface of the models: requests in, results or a stream of events out.

    engine = Engine([read_spec("zh-en=models/opus")])
    results = await engine.answer(TextRequest(model="zh-en", texts=("你好。",)))
    async for event in engine.stream(TextRequest(model="zh-en", texts=("你好。",))):
        ...

For one event loop. Texts are tokenized and joined on worker threads and decoded on the thread of
their model. Cancelling the task or closing the stream cancels the request.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import replace
from typing import Any, TypeVar

from outrider.decoding import DecodeConfig, Hypothesis, Request
from outrider.decoding.request import may_draft
from outrider.errors import ConfigError, OutriderError, UnsupportedError
from outrider.runtime import Generator, Result, Translator
from outrider.runtime.options import call_settings
from outrider.runtime.result import Work
from outrider.runtime.revision import advance, together
from outrider.serving.limits import Limits
from outrider.serving.registry import Loaded, ModelRegistry, Spec
from outrider.serving.request import (
    BusyError,
    Delta,
    Output,
    RequestHandle,
    TextRequest,
    TooLargeError,
)
from outrider.serving.scheduler import Events

T = TypeVar("T")

BRIEF = 256
"""Tokens that are decoded to text on the event loop, which takes less than a millisecond."""
SWEEP = 1.0
"""Longest interval in seconds between two checks for idle models."""


class Engine:
    """Processes requests with the models of a registry."""

    def __init__(
        self,
        specs: Sequence[Spec],
        limits: Limits | None = None,
        *,
        memory: int | None = None,
        idle: float | None = None,
        load_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Register models without loading them; see `ModelRegistry` for the arguments."""
        self.limits = limits or Limits()
        self.registry = ModelRegistry(
            specs,
            self.limits,
            deliver=self._deliver,
            memory=memory,
            idle=idle,
            load_options=load_options,
        )
        self._idle = idle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="outrider-text")
        self._preparing = 0
        """Characters of the texts that are being tokenized."""
        self._sweeper: asyncio.Task[None] | None = None
        self.closing = self.ready = False

    async def start(self, *, load: bool = True) -> None:
        """Load the models within the memory budget and start the checks for idle models."""
        self._loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._sweeper = asyncio.create_task(self._drop_idle(min(SWEEP, self._idle)))
        for name in self.registry.specs if load else ():
            if self.registry.fits(name):
                async with self.registry.hold(name):
                    pass
        self.ready = True

    async def close(self) -> None:
        """Unload all models; pending requests raise `BusyError`."""
        self.closing, self.ready = True, False
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.registry.close()
        await asyncio.sleep(0)  # let the last events reach their requests
        self._workers.shutdown(wait=False)

    def overload(self) -> BusyError | None:
        """Return an error if every model would refuse a request of typical size."""
        loaded = self.registry.loaded
        if len(loaded) < len(self.registry.specs):
            return None
        errors = [model.admission.overload() for model in loaded.values()]
        return None if None in errors else errors[0]

    async def answer(self, request: TextRequest) -> list[list[Result]]:
        """Return the results of each text, best first."""
        async with self.admit(request) as handle:
            while handle.left:
                await handle.next()
            await self.revise(request, handle, range(len(handle.requests)))
            if handle.written < BRIEF:
                return handle.results()
            return await self.run_in_worker(handle.results)

    async def stream(
        self, request: TextRequest, *, tokens: bool = True
    ) -> AsyncGenerator[Delta | Output, None]:
        """Yield new tokens, and the results of finished pieces.

        Close the generator (`contextlib.aclosing`) if it is not exhausted. Without `tokens` only
        results are yielded, which is cheaper.
        """
        async with self.admit(request, streams=tokens) as handle:
            read = [sum(map(_length, work.requests)) for work in handle.works]
            for text, work in enumerate(handle.works):
                if not work.requests:
                    yield Output(text, 0, work.join([]), done=True)
            while handle.left:
                number, update = await handle.next()
                text, piece = handle.places[number]
                if tokens:
                    yield Delta(text, piece, update.tokens, update.rounds, update.at, read[text])
                if update.hypotheses is None:
                    continue
                pieces, results = await self.run_in_worker(handle.beginning, text)
                done = pieces == len(handle.works[text].requests)
                if pieces > piece:  # otherwise an earlier piece is not finished
                    yield Output(text, pieces, results, done, read[text])

    @asynccontextmanager
    async def admit(
        self, request: TextRequest, *, streams: bool = False
    ) -> AsyncIterator[RequestHandle]:
        """Admit a request, start it, and release its reservation at the end."""
        seconds, expires = self._time_limit(request)
        async with self._hold(request, expires) as loaded:
            works = await self._prepare(request, loaded, expires - self.now)
            handle = RequestHandle(
                works,
                priority=request.priority,
                streams=streams,
                seconds=seconds,
                expires=expires,
                on_piece=loaded.admission.finish_piece,
            )
            loaded.admission.observe(request.characters, handle.tokens)
            with _reserve(loaded, handle, expires - self.now):
                if handle.left:
                    loaded.thread.submit(handle)
                yield handle

    @asynccontextmanager
    async def admit_after(
        self, request: TextRequest, earlier: RequestHandle
    ) -> AsyncIterator[tuple[RequestHandle, Callable[[Sequence[int]], Awaitable[None]]]]:
        """Admit a request whose texts are the translated pieces of another, which come later.

        Yields the handle, with one text for each piece of the other request, and a function that
        adds the pieces of these numbers. The reservation begins with the size of the other request.
        """
        seconds, expires = self._time_limit(request)
        async with self._hold(request, expires) as loaded:
            handle = RequestHandle(
                [Work([], lambda _: [])] * len(earlier.requests),
                size=(earlier.tokens, earlier.mean_tokens),
                priority=request.priority,
                seconds=seconds,
                expires=expires,
                on_piece=loaded.admission.finish_piece,
            )

            def tokenize(numbers: Sequence[int]) -> list[Work]:
                texts = [earlier.piece_text(number) for number in numbers]
                seeds = [earlier.places[number][0] for number in numbers]
                return _tokenize(replace(request, texts=texts), loaded, self.limits, seeds)

            async def add(numbers: Sequence[int]) -> None:
                works = await self.run_in_worker(tokenize, numbers)
                for number, work in zip(numbers, works, strict=True):
                    tokens = sum(piece.needs[1] for piece in work.requests)
                    reserved = earlier.requests[number].needs[1]
                    loaded.admission.adjust(handle, tokens - reserved)
                    handle.add(number, work)
                loaded.thread.submit(handle)

            with _reserve(loaded, handle, expires - self.now):
                yield handle, add

    async def revise(
        self, request: TextRequest, handle: RequestHandle, numbers: Sequence[int]
    ) -> None:
        """Decode finished pieces that have faults another way, and put terms, while time lasts."""
        if not request.guard and request.glossary is None:
            return
        revisions = {number: handle.revision(number) for number in numbers}
        chosen = {number: steps for number, steps in revisions.items() if steps is not None}
        steps = together([*chosen.values()])
        requests, revised = await self.run_in_worker(advance, steps, None)
        while revised is None:
            decoded = await self._decode_again(request, requests)
            requests, revised = await self.run_in_worker(advance, steps, decoded)
        for number, hypotheses in zip(chosen, revised, strict=True):
            handle.replace(number, hypotheses)

    async def _decode_again(
        self, request: TextRequest, requests: Sequence[Request]
    ) -> list[list[Hypothesis]]:
        """Decode further requests; nothing is returned if the server has no time for them."""
        seconds, expires = self._time_limit(request)
        decoded: dict[int, list[Hypothesis]] = {}
        try:
            async with self._hold(request, expires) as loaded:
                backend = loaded.model.backend
                pieces = [piece.sized(backend, DecodeConfig()) for piece in requests]
                handle = RequestHandle(
                    [Work(pieces, lambda _: [])],
                    priority=request.priority,
                    seconds=seconds,
                    expires=expires,
                    on_piece=loaded.admission.finish_piece,
                )
                with _reserve(loaded, handle, expires - self.now):
                    loaded.thread.submit(handle)
                    while handle.left:
                        number, update = await handle.next()
                        if update.hypotheses is not None:
                            decoded[number] = update.hypotheses
        except OutriderError:
            return []
        return [decoded[number] for number in range(len(requests))]

    def hold_all(self, *requests: TextRequest) -> AbstractAsyncContextManager[list[Loaded]]:
        """Load the models of requests that are admitted together, within the time of the first."""
        names = [request.model for request in requests]
        seconds = self._time_limit(requests[0])[1] - self.now
        return self.registry.hold_all(names, seconds=seconds)

    @property
    def now(self) -> float:
        """Time by the clock of the event loop."""
        assert self._loop is not None
        return self._loop.time()

    def _time_limit(self, request: TextRequest) -> tuple[float, float]:
        """Return the time limit of a request in seconds, and when it ends."""
        if self.closing or self._loop is None:
            raise BusyError("the server is not running; try again", retry_after=5)
        seconds = min(self.limits.seconds, request.seconds or self.limits.seconds)
        return seconds, (self.now if request.began is None else request.began) + seconds

    def _hold(self, request: TextRequest, expires: float) -> AbstractAsyncContextManager[Loaded]:
        return self.registry.hold(request.model, seconds=expires - self.now)

    async def _prepare(self, request: TextRequest, loaded: Loaded, seconds: float) -> list[Work]:
        """Check the size of a request and tokenize its texts."""
        limits, characters, admission = self.limits, request.characters, loaded.admission
        if len(request.texts) > limits.texts:
            raise TooLargeError(f"{len(request.texts)} texts; send at most {limits.texts} at once")
        if characters > limits.characters:
            most = limits.characters
            raise TooLargeError(f"{characters:,} characters; send at most {most:,} at once")
        if self._preparing and self._preparing + characters > limits.preparing:
            raise BusyError("too many texts are being tokenized; try again", retry_after=1)
        admission.check(admission.estimate(characters), seconds)  # before the cost of tokenizing
        self._preparing += characters
        try:
            return await self.run_in_worker(_tokenize, request, loaded, limits)
        finally:
            self._preparing -= characters

    async def run_in_worker(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function on a worker thread."""
        assert self._loop is not None
        return await self._loop.run_in_executor(self._workers, function, *arguments)

    def _deliver(self, events: Events) -> None:
        """Pass events from a model's thread to the event loop."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_receive, events)

    async def _drop_idle(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await self.registry.drop_idle()


def _receive(events: Events) -> None:
    for handle, event in events:
        handle.receive(event)


@contextmanager
def _reserve(loaded: Loaded, handle: RequestHandle, seconds: float) -> Iterator[None]:
    """Reserve the tokens of a request; cancel what is left of it at the end."""
    loaded.admission.check(handle.tokens, seconds)
    loaded.admission.reserve(handle)
    try:
        yield
    finally:
        loaded.admission.release(handle)
        if handle.left:
            loaded.thread.cancel(handle)


def _tokenize(
    request: TextRequest, loaded: Loaded, limits: Limits, seeds: Sequence[int] | None = None
) -> list[Work]:
    """Divide texts into pieces, each with the rows and tokens that it needs.

    Text number i samples with `seed + i`, or with `seed + seeds[i]`.
    """
    model = loaded.model
    config = call_settings(model.backend, model.defaults, request.options)
    _check(config, limits)
    unasked = "mode" not in request.options and config.mode == "ar" and not config.scores
    if unasked and may_draft(model.backend, config):
        config = config.changed(mode="tandem")
    if request.messages:
        works = _chat(request, loaded, config)
    elif isinstance(model, Translator):
        if loaded.spec.pair is None:
            model = model.between(request.source, request.target)
        works = model.works(
            request.texts,
            config,
            split=request.split,
            guard=request.guard,
            glossary=request.glossary,
        )
    else:
        works = model.works(request.texts, config)
    for work, seed in zip(works, seeds or (), strict=seeds is not None):
        work.requests[:] = [replace(piece, seed=config.seed + seed) for piece in work.requests]
    return [
        replace(work, requests=[piece.sized(model.backend, config) for piece in work.requests])
        for work in works
    ]


def _chat(request: TextRequest, loaded: Loaded, config: DecodeConfig) -> list[Work]:
    """Encode a conversation with the chat template, which includes the start token."""
    if not isinstance(loaded.model, Generator):
        message = f"{loaded.spec.name} is a translation model, not a chat model"
        raise UnsupportedError(f"{message}; use /translate or /v1/completions")
    if loaded.chat is None:
        message = f"{loaded.spec.name} has no chat template"
        raise UnsupportedError(f"{message}; use /v1/completions")
    start, *prompt = loaded.chat.encode(request.messages) or [loaded.model.backend.start]
    return [
        loaded.model.work(
            Request(start=start, prompt=prompt, seed=config.seed + copy, config=config)
        )
        for copy in range(request.copies)
    ]


def _length(request: Request) -> int:
    return len(request.source) + len(request.prompt)


def _check(config: DecodeConfig, limits: Limits) -> None:
    """Check decode options against the limits of the server."""
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
