"""OpenAI's `/v1/chat/completions`, for language models that have a chat template.

OpenAI's `/v1/completions`: prompts continued, or with a translation model translated.

How OpenAI's completions and chats are answered: whole, or in chunks as the texts grow.

What OpenAI's completions and chats have in common: their fields, checked, and what they mean.

OpenAI's `/v1/models`: what there is to ask.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import JSONResponse

from outrider.errors import ConfigError
from outrider.serving.answers import UnknownError
from outrider.serving.engine import Ask, Engine
from outrider.serving.events import STREAMED, event_response, started
from outrider.serving.fields import Code, Options, PriorityName, Seconds, read_priority
from outrider.serving.keys import admit
from outrider.serving.log import while_there
from outrider.serving.registry import Spec
from outrider.serving.told import ChoiceDelta, tell

__all__ = ["OpenAIAnswer", "OpenAIBody", "StreamOptions", "router"]

Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class StreamOptions(BaseModel):
    """What a stream is to end with."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False


class OpenAIBody(BaseModel):
    """Fields of both; an unknown one is an error, and so is one that would have no effect.

    Without a temperature and top_p, or with temperature 0, the likeliest token is taken.
    """

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=200)]
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] = 1
    seed: Annotated[int, Field(ge=0, le=2**53)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=200)] | None = None
    """Not looked at."""
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    options: Options = Options()
    """Ours: how to decode, beyond what OpenAI knows."""
    priority: PriorityName | None = None
    deadline: Seconds | None = None

    @property
    def stops(self) -> list[str]:
        """What ends a text."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def decode_options(self, max_tokens: int | None) -> dict[str, Any]:
        """Return the fields of `DecodeConfig` that all this comes to."""
        options = self.options.given
        # Without a temperature OpenAI draws at 1; here a top_p below 1 asks for that.
        nucleus = None if self.top_p == 1 else self.top_p
        draws = bool(self.temperature) or (nucleus is not None and self.temperature is None)
        drawn = draws or "temperature" in options or "strategy" in options
        if self.n > 1 and not drawn:
            raise ConfigError("n", "several texts are all the same; set temperature above 0")
        named: dict[str, Any] = {"max_new_tokens": max_tokens}
        if draws:
            named |= {"temperature": self.temperature, "top_p": nucleus, "seed": self.seed}
        for key, value in named.items():
            if value is not None and key in options:
                raise ConfigError(f"options.{key}", "is set twice; leave one of them out")
        return options | {key: value for key, value in named.items() if value is not None}


class OpenAIAnswer(ABC):
    """One answer; what kind of choices it has, a subclass says."""

    def __init__(self, body: OpenAIBody, ask: Ask, *, prefix: str, kind: str) -> None:
        """Begin an answer whose id begins with `prefix`, and that is an object of some `kind`."""
        self.body, self.ask = body, ask
        self._head = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": body.model,
        }

    @abstractmethod
    def choice(self, number: int, text: str, finish: str | None) -> dict[str, Any]:
        """Return a choice with all of its text."""

    @abstractmethod
    def delta(self, number: int, text: str, finish: str | None, *, first: bool) -> dict[str, Any]:
        """Return what a choice has grown by."""

    def openings(self) -> list[str]:
        """Return what texts begin with before anything is said."""
        return [""] * (self.ask.copies if self.ask.messages else len(self.ask.texts))

    async def respond(self, request: Request) -> Response:
        """Ask the engine, and answer as was asked for."""
        engine: Engine = request.app.state.engine
        facts = {"model": self.body.model, "characters": self.ask.characters}
        request.scope["facts"] |= facts
        told = tell(engine, self.ask, stops=self.body.stops, tokens=self.body.stream)
        if self.body.stream:
            return event_response(await while_there(request, started(self._chunks(told))))
        return JSONResponse(await while_there(request, self._whole(told)))

    async def _whole(self, told: AsyncGenerator[ChoiceDelta, None]) -> dict[str, Any]:
        texts = self.openings()
        last: dict[int, ChoiceDelta] = {}
        async for one in told:
            texts[one.choice] += one.text
            last[one.choice] = one
        choices = [self.choice(n, text, last[n].finish) for n, text in enumerate(texts)]
        return self._head | {"choices": choices, "usage": _usage(list(last.values()))}

    async def _chunks(self, told: AsyncGenerator[ChoiceDelta, None]) -> AsyncGenerator[Any, None]:
        begun: set[int] = set()
        done: list[ChoiceDelta] = []
        for number, text in enumerate(self.openings()):
            if text:
                begun.add(number)
                yield self._head | {"choices": [self.delta(number, text, None, first=True)]}
        async for one in told:
            first = one.choice not in begun
            begun.add(one.choice)
            choice = self.delta(one.choice, one.text, one.finish, first=first)
            yield self._head | {"choices": [choice]}
            done += [one] if one.finish else []
        if self.body.stream_options and self.body.stream_options.include_usage:
            yield self._head | {"choices": [], "usage": _usage(done)}


def _usage(done: list[ChoiceDelta]) -> dict[str, int]:
    """Count tokens as OpenAI does."""
    read, written = sum(one.read for one in done), sum(one.written for one in done)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


router = APIRouter(prefix="/v1", tags=["OpenAI"])


class Part(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(max_length=64)]
    name: Annotated[str, Field(max_length=64)] | None = None

    @property
    def plain(self) -> dict[str, str]:
        """What a template is shown."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": self.role, "content": text}


class ChatBody(OpenAIBody):
    """What `/v1/chat/completions` is asked."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=256)]
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


@router.post("/chat/completions", response_model=None, responses=STREAMED)
async def converse(request: Request, body: ChatBody) -> Response:
    """Say what comes next in a conversation."""
    priority = read_priority(body.priority, admit(request))
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ConfigError("max_tokens", "is set as max_completion_tokens too; leave one out")
    ask = Ask(
        model=body.model,
        messages=[message.plain for message in body.messages],
        copies=body.n,
        options=body.decode_options(body.max_completion_tokens or body.max_tokens),
        priority=priority,
        seconds=body.deadline,
    )
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    return await _ChatAnswer(body, ask, prefix="chatcmpl", kind=kind).respond(request)


class _ChatAnswer(OpenAIAnswer):
    def choice(self, number: int, text: str, finish: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {"index": number, "message": message, "logprobs": None, "finish_reason": finish}

    def delta(self, number: int, text: str, finish: str | None, *, first: bool) -> dict[str, Any]:
        role = {"role": "assistant"} if first else {}
        return {"index": number, "delta": {**role, "content": text}, "finish_reason": finish}


class CompletionBody(OpenAIBody):
    """What `/v1/completions` is asked."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=256)]
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    echo: bool = False
    """Whether to begin each text with its prompt."""
    source: Code | None = None
    """Ours: the language of the prompts, for a model of many languages."""
    target: Code | None = None
    """Ours: the language to write."""


@router.post("/completions", response_model=None, responses=STREAMED)
async def complete(request: Request, body: CompletionBody) -> Response:
    """Continue prompts; a translation model translates them."""
    priority = read_priority(body.priority, admit(request))
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    ask = Ask(
        model=body.model,
        texts=[prompt for prompt in prompts for _ in range(body.n)],
        source=body.source,
        target=body.target,
        options=body.decode_options(body.max_tokens),
        priority=priority,
        seconds=body.deadline,
    )
    return await _CompletionAnswer(body, ask, prefix="cmpl", kind="text_completion").respond(
        request
    )


class _CompletionAnswer(OpenAIAnswer):
    body: CompletionBody

    def openings(self) -> list[str]:
        return list(self.ask.texts) if self.body.echo else super().openings()

    def choice(self, number: int, text: str, finish: str | None) -> dict[str, Any]:
        return {"index": number, "text": text, "logprobs": None, "finish_reason": finish}

    def delta(self, number: int, text: str, finish: str | None, *, first: bool) -> dict[str, Any]:
        return self.choice(number, text, finish)


Name = Annotated[str, Path(max_length=200)]


@router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    """List the models."""
    engine: Engine = request.app.state.engine
    found = [_about(spec, engine) for spec in engine.shelf.specs.values()]
    return {"object": "list", "data": found}


@router.get("/models/{name}")
async def model(request: Request, name: Name) -> dict[str, Any]:
    """Describe one model."""
    engine: Engine = request.app.state.engine
    spec = engine.shelf.specs.get(name)
    if spec is None:
        raise UnknownError(f"no model is called {name[:100]!r}")
    return _about(spec, engine)


def _about(spec: Spec, engine: Engine) -> dict[str, Any]:
    """Say what OpenAI says of a model, and what it does and whether it is loaded."""
    return {
        "id": spec.name,
        "object": "model",
        "created": spec.changed,
        "owned_by": "outrider",
        "task": "generate" if spec.writes else "translate",
        "languages": list(spec.pair) if spec.pair else list(spec.languages),
        "loaded": spec.name in engine.shelf.loaded,
    }
