"""API of the page `/race`: tandem and token-by-token decoding of a text, round by round.

    POST /watch    {"model": "en-de", "text": "Where is it?", "gamma": 0.2, "draft_tokens": 4}

returns server-sent events:

    start    source tokens, and the number of drafted tokens (null: no drafter)
    round    mode, piece of the text, milliseconds since the start, tokens and their verdicts
    done     mode, text, and the times of each piece's rounds in the fastest of several runs
    looks    mode and, for each piece, the cross-attention of each token
    error    an error that ends the stream

Tandem is first, so that the page can show both on one clock. One deadline, the server's limit for a
request, covers both modes.
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
from outrider.decoding import DecodeConfig, Round
from outrider.decoding import Request as DecodeRequest
from outrider.errors import InputError, OutriderError
from outrider.runtime import Generator, Translator
from outrider.serving.api.fields import Code, read_priority
from outrider.serving.api.responses import EVENT_HEADERS, started, while_connected
from outrider.serving.engine import Engine
from outrider.serving.keys import admit
from outrider.serving.registry import Loaded
from outrider.serving.request import Delta, LateError, Output, Priority, TextRequest
from outrider.show.tandem_trace import Decode, Span, added_text, round_spans

logger = logging.getLogger("outrider.serving")
router = APIRouter(tags=["page"])

CHARACTERS, TOKENS = 1_000, 600
"""Longest text, in characters and tokens."""
DRAFT_TOKENS = 4
RUNS, RUN_SECONDS = 20, 0.3
"""Most runs of each mode, and the time in which they begin: short runs are noisy. Under load there
is one run."""
CONTEXT = 16
"""Tokens of context that determine the text of new tokens."""
LAYERS = 2
"""Last decoder layers whose cross-attention is averaged; they align best with the source."""
ATTENTION_TOKENS = 256
"""Longest piece whose attention is sent, in tokens."""

Mode = Literal["tandem", "ar"]
Times = dict[int, list[float]]
"""Times at which the rounds of each piece ended."""


class WatchBody(BaseModel):
    """Body of `/watch`."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=CHARACTERS)]
    model: Annotated[str, Field(max_length=200)] | None = None
    """Name of the model; by default the first."""
    source: Code | None = None
    """Language of the text, if the model needs it."""
    target: Code | None = None
    gamma: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    draft_tokens: Annotated[int, Field(ge=1, le=64)] = DRAFT_TOKENS
    """At most as many as the drafter supports."""


@router.get("/watch")
async def models(request: Request) -> list[dict[str, Any]]:
    """List the models, and the languages that a request must name."""
    engine: Engine = request.app.state.engine
    return [
        {
            "name": spec.name,
            "pair": spec.pair,
            "sources": spec.languages if spec.needs_source else [],
            "targets": spec.languages,
        }
        for spec in engine.registry.specs.values()
    ]


_EVENTS = {"description": "Rounds of decoding, as events.", "content": {"text/event-stream": {}}}


@router.post("/watch", response_class=StreamingResponse, responses={200: _EVENTS})
async def watch(request: Request, body: WatchBody) -> StreamingResponse:
    """Decode a text in tandem and token by token, and stream every round."""
    priority = read_priority(None, admit(request))
    engine: Engine = request.app.state.engine
    name = body.model or next(iter(engine.registry.specs))
    request.scope["facts"] |= {"model": name, "characters": len(body.text)}
    events = await while_connected(request, started(_events(engine, name, body, priority)))
    return StreamingResponse(
        _with_errors(events), media_type="text/event-stream", headers=EVENT_HEADERS
    )


async def _with_errors(events: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    """Convert an error during the stream to an event."""
    async with aclosing(events):
        try:
            async for event in events:
                yield event
        except OutriderError as error:
            yield _event("error", message=str(error))
        except Exception as error:
            logger.error("%s during /watch", type(error).__name__)
            yield _event("error", message="internal server error")


async def _events(
    engine: Engine, name: str, body: WatchBody, priority: Priority
) -> AsyncGenerator[str, None]:
    began, until = asyncio.get_running_loop().time(), perf_counter() + engine.limits.seconds
    async with engine.registry.hold(name, seconds=engine.limits.seconds) as loaded:
        drafts = loaded.model.backend.drafts
        block = 0 if drafts is None else min(body.draft_tokens, drafts.longest)
        options: dict[Mode, dict[str, Any]] = {"ar": {"mode": "ar"}}
        if block:
            tandem = {"mode": "tandem", "draft_tokens": block, "gamma": body.gamma}
            options = {"tandem": tandem, **options}
        pieces = await engine.run_in_worker(_read, loaded, body)
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
            text_request = TextRequest(
                model=name,
                texts=(body.text,),
                source=body.source if loaded.spec.needs_source else None,
                target=None if loaded.spec.pair else body.target,
                options=chosen,
                priority=priority,
                began=began,
            )
            async with aclosing(_run(engine, text_request, mode, pieces, loaded)) as events:
                async for event in events:
                    yield event
            looks = await engine.run_in_worker(_looks, loaded, pieces, until)
            if looks is not None:
                yield _event("looks", mode=mode, weights=looks)


async def _run(
    engine: Engine, request: TextRequest, mode: Mode, pieces: Sequence["_Piece"], loaded: Loaded
) -> AsyncGenerator[str, None]:
    """Stream one run, and repeat short runs for their times."""
    fastest, text, started = Times(), "", perf_counter()
    async with aclosing(engine.stream(request)) as events:
        async for event in events:
            if isinstance(event, Output):
                text = event.results[0].text
                continue
            now = _milliseconds(event.at - started)
            for round_ in _rounds(event, pieces[event.piece].end):
                fastest.setdefault(event.piece, []).append(now)
                spans = await engine.run_in_worker(pieces[event.piece].add, round_)
                yield _event("round", mode=mode, piece=event.piece, at=now, tokens=_tokens(spans))
    runs, began = 1, perf_counter()  # caches are cold in the first run
    while runs < RUNS and perf_counter() - began < RUN_SECONDS and not loaded.thread.running:
        try:
            times = await _time(engine, request)
        except LateError:
            break
        runs += 1
        if _last(times) < _last(fastest) and _shape(times) == _shape(fastest):
            fastest = times
    at = [fastest.get(piece, []) for piece in range(len(pieces))]
    yield _event("done", mode=mode, text=text, takes=runs, at=at)


async def _time(engine: Engine, request: TextRequest) -> Times:
    """Decode, and return the times at which the rounds ended."""
    times, started = Times(), perf_counter()
    async with aclosing(engine.stream(request)) as events:
        async for event in events:
            if isinstance(event, Delta):
                at = _milliseconds(event.at - started)
                times.setdefault(event.piece, []).extend([at] * len(_rounds(event, 0)))
    return times


def _rounds(delta: Delta, end: int) -> list[Round]:
    """Return the rounds of new tokens; without drafting, each token is a round."""
    tokens = delta.tokens or (() if delta.rounds else (end,))
    return list(delta.rounds) or [Round((), 0, token) for token in tokens]


def _last(times: Times) -> float:
    return max((ends[-1] for ends in times.values()), default=0.0)


def _shape(times: Times) -> dict[int, int]:
    return {piece: len(ends) for piece, ends in times.items()}


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 3)


@dataclass
class _Piece:
    """A piece of the text, such as a sentence, and its generated tokens."""

    request: DecodeRequest
    prompt: Sequence[int]
    """Tokens before the first generated token."""
    source: list[dict[str, Any]]
    decode: Decode
    ends: tuple[int, ...]
    written: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.ends[0]

    def add(self, round_: Round) -> tuple[Span, ...]:
        """Append the accepted tokens of a round, and return all of its tokens."""
        before = [*self.prompt[-CONTEXT:], *self.written[-CONTEXT:]][-CONTEXT:]
        spans = round_spans(round_, before, self.decode, self.ends)
        self.written += [span.token for span in spans if span.kept]
        return spans


def _read(loaded: Loaded, body: WatchBody) -> list[_Piece]:
    """Divide a text into pieces as the engine does."""
    model, config = loaded.model, DecodeConfig()
    decode, ends = model.tokenizer.decode, model.backend.ends
    if isinstance(model, Generator):
        (request,) = model.requests([body.text], config)
        _check_length([len(request.prompt)])
        return [_Piece(request, model.prompt_ids(request), [], decode, ends)]
    if model.right_to_left:
        message = "models with right_to_left are not supported here"
        raise InputError(f"{message}; use /translate or outrider show tandem")
    if loaded.spec.pair is None:
        model = model.between(body.source if loaded.spec.needs_source else None, body.target)
    requests = model.requests([body.text], config)[0]
    _check_length([len(request.source) for request in requests])
    return [
        _Piece(request, (), _labels(request.source, decode, ends), decode, ends)
        for request in requests
    ]


def _check_length(lengths: Sequence[int]) -> None:
    if sum(lengths) > TOKENS:
        raise InputError(f"{sum(lengths):,} tokens are too many; send at most {TOKENS}")


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
    """Return the cross-attention of each token, averaged over heads of the last layers.

    None if the backend does not return it; None for a piece that is too long or late.
    """
    backend = loaded.model.backend
    if not isinstance(loaded.model, Translator) or not isinstance(backend, NativeBackend):
        return None
    weights: list[list[list[float]] | None] = []
    for piece in pieces:
        opening, source = piece.request.opening(backend), piece.request.source
        fed = [*opening, *piece.written][:-1]
        too_large = len(fed) * len(source) > ATTENTION_TOKENS**2
        if not piece.written or too_large or perf_counter() > until:
            weights.append(None)
            continue
        (weights_LHTS,) = backend.cross_attention([source], [fed])
        mean_TS = weights_LHTS[-LAYERS:, :, len(opening) - 1 :].mean((0, 1))
        weights.append(np.round(mean_TS.astype(np.float64), 3).tolist())
    return weights


def _event(name: str, **data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
