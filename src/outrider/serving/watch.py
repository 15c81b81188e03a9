"""What the page at `/` shows: two ways to decode one text, told round by round.

    POST /watch    {"model": "en-de", "text": "Where is it?", "gamma": 0.2, "draft_tokens": 4}

answers with server-sent events:

    start    how the text is read, and how many tokens are drafted at once (null: no drafter)
    round    mode, piece of the text, milliseconds since the start, tokens and what became of them
    done     mode, text, and the times of each piece's rounds in the fastest of several runs
    looks    mode and, for each piece, where each token looks in the source
    error    why there is no more

Tandem comes first: a page that waits for the other can then show both on one clock. One deadline,
the server's bound for a request, covers both decodings.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from outrider.backends.native import NativeBackend
from outrider.decoding import DecodeSettings, Round
from outrider.decoding import Request as Row
from outrider.errors import InputError, OutriderError
from outrider.runtime import Generator, Translator
from outrider.serving.admission import Priority
from outrider.serving.answers import LateError
from outrider.serving.engine import Ask, Engine, Finished, Progress
from outrider.serving.events import started
from outrider.serving.fields import Code, read_priority
from outrider.serving.keys import admit
from outrider.serving.log import while_there
from outrider.serving.registry import Loaded
from outrider.show.tandem_trace import Decode, Span, added_text, round_spans

__all__ = ["router"]

logger = logging.getLogger("outrider.serving")
router = APIRouter(tags=["page"])

CHARACTERS, TOKENS = 1_000, 600
"""Of a text to watch; more is nothing to look at."""
DRAFT_TOKENS = 4
TAKES, BRIEF = 20, 0.3
"""Runs of each mode at most, and the seconds after the first in which others are begun: a run of
milliseconds is easily disturbed. While others are served there is one."""
CONTEXT = 16
"""Tokens before a round that are enough to say what it adds to the text."""
LAYERS = 2
"""The last of the decoder, whose heads say best which word is translated."""
LOOKED_AT = 256
"""Tokens of a piece whose attention is still sent."""

Mode = Literal["tandem", "ar"]
Times = dict[int, list[float]]
"""When the rounds of each piece were over."""


class WatchBody(BaseModel):
    """What `/watch` is asked."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=CHARACTERS)]
    model: Annotated[str, Field(max_length=200)] | None = None
    """Its name; by default the first."""
    source: Code | None = None
    """Language of the text, where the model wants to be told."""
    target: Code | None = None
    gamma: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    draft_tokens: Annotated[int, Field(ge=1, le=64)] = DRAFT_TOKENS
    """As many as the drafter can, where that is less."""


@router.get("/watch")
async def models(request: Request) -> list[dict[str, Any]]:
    """List the models that can be watched, and the languages that they must be told."""
    engine: Engine = request.app.state.engine
    return [
        {
            "name": spec.name,
            "pair": spec.pair,
            "sources": spec.languages if spec.reads else [],
            "targets": spec.languages,
        }
        for spec in engine.shelf.specs.values()
    ]


_EVENTS = {"description": "What happens, as events.", "content": {"text/event-stream": {}}}


@router.post("/watch", response_class=StreamingResponse, responses={200: _EVENTS})
async def watch(request: Request, body: WatchBody) -> StreamingResponse:
    """Decode a text in tandem and token by token, and tell every round."""
    priority = read_priority(None, admit(request))
    engine: Engine = request.app.state.engine
    name = body.model or next(iter(engine.shelf.specs))
    request.scope["facts"] |= {"model": name, "characters": len(body.text)}
    events = await while_there(request, started(_events(engine, name, body, priority)))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_told(events), media_type="text/event-stream", headers=headers)


async def _told(events: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    """Tell what happens; what goes wrong on the way is an event too."""
    async with aclosing(events):
        try:
            async for event in events:
                yield event
        except OutriderError as error:
            yield _event("error", message=str(error))
        except Exception as error:
            logger.error("%s while a text was watched", type(error).__name__)
            yield _event("error", message="something went wrong inside")


async def _events(
    engine: Engine, name: str, body: WatchBody, priority: Priority
) -> AsyncGenerator[str, None]:
    began, until = asyncio.get_running_loop().time(), perf_counter() + engine.limits.seconds
    async with engine.shelf.hold(name, seconds=engine.limits.seconds) as loaded:
        drafts = loaded.model.backend.drafts
        block = 0 if drafts is None else min(body.draft_tokens, drafts.longest)
        options: dict[Mode, dict[str, Any]] = {"ar": {"mode": "ar"}}
        if block:
            tandem = {"mode": "tandem", "draft_tokens": block, "gamma": body.gamma}
            options = {"tandem": tandem, **options}
        pieces = await engine.beside(_read, loaded, body)
        yield _event(
            "start",
            model=name,
            draft_tokens=block or None,
            longest_draft=None if drafts is None else drafts.longest,
            source=[piece.source for piece in pieces],
        )
        for mode, chosen in options.items():
            for piece in pieces:
                piece.written.clear()
            ask = Ask(
                model=name,
                texts=(body.text,),
                source=body.source if loaded.spec.reads else None,
                target=None if loaded.spec.pair else body.target,
                options=chosen,
                priority=priority,
                began=began,
            )
            async with aclosing(_run(engine, ask, mode, pieces, loaded)) as events:
                async for event in events:
                    yield event
            looks = await engine.beside(_looks, loaded, pieces, until)
            if looks is not None:
                yield _event("looks", mode=mode, weights=looks)


async def _run(
    engine: Engine, ask: Ask, mode: Mode, pieces: Sequence["_Piece"], loaded: Loaded
) -> AsyncGenerator[str, None]:
    """Tell one run, and time some more of them if they are brief."""
    fastest, text, started = Times(), "", perf_counter()
    async with aclosing(engine.stream(ask)) as events:
        async for event in events:
            if isinstance(event, Finished):
                text = event.results[0].text
                continue
            now = _milliseconds(event.at - started)
            for one in _rounds(event, pieces[event.piece].end):
                fastest.setdefault(event.piece, []).append(now)
                spans = await engine.beside(pieces[event.piece].add, one)
                yield _event("round", mode=mode, piece=event.piece, at=now, tokens=_tokens(spans))
    takes, began = 1, perf_counter()  # what is told first may have met a cold machine
    while takes < TAKES and perf_counter() - began < BRIEF and not loaded.driver.running:
        try:
            times = await _time(engine, ask)
        except LateError:
            break
        takes += 1
        if _last(times) < _last(fastest) and _shape(times) == _shape(fastest):
            fastest = times
    at = [fastest.get(piece, []) for piece in range(len(pieces))]
    yield _event("done", mode=mode, text=text, takes=takes, at=at)


async def _time(engine: Engine, ask: Ask) -> Times:
    """Decode without telling, and return when each round was over."""
    times, started = Times(), perf_counter()
    async with aclosing(engine.stream(ask)) as events:
        async for event in events:
            if isinstance(event, Progress):
                at = _milliseconds(event.at - started)
                times.setdefault(event.piece, []).extend([at] * len(_rounds(event, 0)))
    return times


def _rounds(news: Progress, end: int) -> list[Round]:
    """Return the rounds of some news; a token that was not drafted is a round of its own."""
    said = news.tokens or (() if news.rounds else (end,))
    return list(news.rounds) or [Round((), 0, token) for token in said]


def _last(times: Times) -> float:
    return max((one[-1] for one in times.values()), default=0.0)


def _shape(times: Times) -> dict[int, int]:
    return {piece: len(one) for piece, one in times.items()}


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 3)


@dataclass
class _Piece:
    """What is decoded in one go, a sentence say, and what has been written for it."""

    request: Row
    prompt: Sequence[int]
    """Tokens before the first that is written."""
    source: list[dict[str, Any]]
    decode: Decode
    ends: tuple[int, ...]
    written: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.ends[0]

    def add(self, one: Round) -> tuple[Span, ...]:
        """Write what a round brought, and return all of its tokens."""
        before = [*self.prompt[-CONTEXT:], *self.written[-CONTEXT:]][-CONTEXT:]
        spans = round_spans(one, before, self.decode, self.ends)
        self.written += [span.token for span in spans if span.kept]
        return spans


def _read(loaded: Loaded, body: WatchBody) -> list[_Piece]:
    """Take a text apart as the engine does."""
    model, config = loaded.model, DecodeSettings()
    decode, ends = model.tokenizer.decode, model.backend.ends
    if isinstance(model, Generator):
        (request,) = model.requests([body.text], config)
        _check_length([len(request.prompt)])
        return [_Piece(request, model.prompt_ids(request), [], decode, ends)]
    if model.right_to_left:
        message = "this model writes from right to left (right_to_left), which is not shown here"
        raise InputError(f"{message}; ask /translate, or see outrider show tandem")
    if loaded.spec.pair is None:
        model = model.between(body.source if loaded.spec.reads else None, body.target)
    requests = model.requests([body.text], config)[0]
    _check_length([len(request.source) for request in requests])
    return [
        _Piece(request, (), _labels(request.source, decode, ends), decode, ends)
        for request in requests
    ]


def _check_length(lengths: Sequence[int]) -> None:
    if sum(lengths) > TOKENS:
        raise InputError(f"{sum(lengths):,} tokens are too many to watch; send at most {TOKENS}")


def _labels(source: Sequence[int], decode: Decode, ends: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"text": added_text(source[:place], token, decode, ends), "ends": token in ends}
        for place, token in enumerate(source)
    ]


def _tokens(spans: Sequence[Span]) -> list[dict[str, Any]]:
    return [
        {
            "text": span.text,
            "kind": span.kind,
            "place": span.place,
            "ends": span.ends,
            "sure": None if span.confidence is None else round(span.confidence, 3),
        }
        for span in spans
    ]


def _looks(
    loaded: Loaded, pieces: Sequence[_Piece], until: float
) -> list[list[list[float]] | None] | None:
    """Return where each token looked, the mean of the heads of the last layers.

    None where the engine cannot tell; for a piece that is too long or comes too late, too.
    """
    backend = loaded.model.backend
    if not isinstance(loaded.model, Translator) or not isinstance(backend, NativeBackend):
        return None
    found: list[list[list[float]] | None] = []
    for piece in pieces:
        opening, source = piece.request.opening(backend), piece.request.source
        fed = [*opening, *piece.written][:-1]  # nothing was written after the last
        too_large = len(fed) * len(source) > LOOKED_AT**2
        if not piece.written or too_large or perf_counter() > until:
            found.append(None)
            continue
        weights_LHTS = backend.cross_attention(source, fed)
        mean_TS = weights_LHTS[-LAYERS:, :, len(opening) - 1 :].mean((0, 1))
        found.append(np.round(mean_TS.astype(np.float64), 3).tolist())
    return found


def _event(name: str, **data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
