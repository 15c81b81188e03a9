"""OpenAI's API: `/v1/chat/completions`, `/v1/completions` and `/v1/models`.

Chats need a language model with a chat template. Completions continue prompts; a translation model
translates them.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import JSONResponse

from outrider.errors import ConfigError
from outrider.options import JSON_WHOLE
from outrider.runtime import Generator
from outrider.serving.api.fields import Code, Options, PriorityName, Seconds, read_priority
from outrider.serving.api.responses import (
    STREAMED,
    TextStream,
    event_response,
    started,
    while_connected,
)
from outrider.serving.engine import Engine
from outrider.serving.keys import admit
from outrider.serving.registry import Spec
from outrider.serving.request import Delta, Output, TextRequest, UnknownError
from outrider.text.normalise import normalise_verbatim, well_formed
from outrider.text.tokenizer import Tokenizer

router = APIRouter(prefix="/v1", tags=["OpenAI"])

Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False


class OpenAIBody(BaseModel):
    """Fields of chats and completions; unknown fields and fields without effect are errors.

    Decoding is greedy at temperature 0, and without temperature and top_p.
    """

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=200)]
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] = 1
    seed: Annotated[int, Field(ge=0, le=JSON_WHOLE)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=200)] | None = None
    """Ignored."""
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    options: Options = Options()
    """Extension: decode options beyond OpenAI's."""
    priority: PriorityName | None = None
    deadline: Seconds | None = None

    @property
    def stops(self) -> list[str]:
        """Stop sequences."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def decode_options(self, max_tokens: int | None) -> dict[str, Any]:
        """Return the fields of `DecodeConfig` for this body."""
        options = self.options.given
        # OpenAI's default temperature is 1; here only a top_p below 1 implies sampling.
        nucleus = None if self.top_p == 1 else self.top_p
        sampled = bool(self.temperature) or (nucleus is not None and self.temperature is None)
        if self.n > 1 and not (sampled or "temperature" in options or "strategy" in options):
            raise ConfigError("n", "several texts are all the same; set temperature above 0")
        named: dict[str, Any] = {"max_new_tokens": max_tokens}
        if sampled:
            named |= {"temperature": self.temperature, "top_p": nucleus, "seed": self.seed}
        for key, value in named.items():
            if value is not None and key in options:
                raise ConfigError(f"options.{key}", "is set twice; leave one of them out")
        return options | {key: value for key, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """New text of a choice."""

    choice: int
    text: str
    finish: str | None = None
    """`stop` or `length` at the end."""
    read: int = 0
    """Prompt tokens, at the end."""
    written: int = 0
    """Generated tokens, at the end."""


class Choice:
    """The text of a choice: streamed up to the first stop sequence."""

    def __init__(
        self, number: int, stops: Sequence[str], stream: TextStream | None, translates: bool
    ) -> None:
        """Begin without text; with `translates`, surrounding whitespace is not part of the text.

        Without a `stream`, text is published by whole pieces.
        """
        self._number, self._stops = number, stops
        self._stream, self._translates = stream, translates
        self._text = ""
        self._sent = self._written = self._read = 0
        self.done = False

    def add(self, delta: Delta) -> ChoiceDelta | None:
        """Append tokens; return the text that can be published."""
        self._written, self._read = self._written + len(delta.tokens), delta.read
        # Later sentences of a translation are published when they are finished.
        if delta.piece or self._stream is None:
            return None
        self._text += self._stream.add(delta.tokens)
        if self._translates:
            self._text = self._text.lstrip()
        return self._publish(None)

    def finish(self, output: Output) -> ChoiceDelta | None:
        """Replace the text by the result of its finished pieces."""
        best = output.results[0]
        if best.text.startswith(self._text[: self._sent]):
            self._text = best.text
        if not output.done:
            return self._publish(None)
        self._written, self._read = len(best.tokens), output.read
        return self._publish("length" if best.finish == "length" else "stop")

    def _publish(self, finish: str | None) -> ChoiceDelta | None:
        stops = [place for stop in self._stops if (place := self._text.find(stop)) >= 0]
        end = min(stops, default=len(self._text))
        if stops:
            finish = "stop"
        elif finish is None:
            end -= self._partial_stop()
            end = len(self._text[:end].rstrip()) if self._translates else end
        new, self._sent = self._text[self._sent : end], max(end, self._sent)
        self.done = finish is not None
        if not new and not self.done:
            return None
        return ChoiceDelta(self._number, new, finish, self._read, self._written)

    def _partial_stop(self) -> int:
        """Return the length of the longest end of the text that may begin a stop sequence."""
        longest = max(map(len, self._stops), default=1) - 1
        tail = self._text[len(self._text) - longest :] if longest else ""
        for start in range(len(tail)):
            if any(stop.startswith(tail[start:]) for stop in self._stops):
                return len(tail) - start
        return 0


async def _stream_choices(
    engine: Engine, request: TextRequest, *, stops: Sequence[str], tokens: bool
) -> AsyncGenerator[ChoiceDelta, None]:
    """Yield new text of the choices, by tokens if requested or needed for stop sequences."""
    async with engine.registry.hold(request.model, seconds=engine.limits.seconds) as loaded:
        model = loaded.model
        translates = not isinstance(model, Generator)
        incremental = isinstance(model, Generator) or not model.right_to_left
    prompts = await engine.run_in_worker(_prompts, request, model.tokenizer, translates)
    choices = []
    for number, prompt in enumerate(prompts):
        stream = TextStream(model.tokenizer, prompt) if incremental else None
        choices.append(Choice(number, stops, stream, translates))
    async with aclosing(engine.stream(request, tokens=tokens or bool(stops))) as events:
        async for event in events:
            choice = choices[event.text]
            if choice.done:  # at a stop sequence; others continue
                continue
            delta = choice.finish(event) if isinstance(event, Output) else choice.add(event)
            if delta is not None:
                yield delta
            if all(choice.done for choice in choices):
                return


def _prompts(request: TextRequest, tokenizer: Tokenizer, translates: bool) -> list[list[int]]:
    """Return the tokens that each choice continues."""
    if request.messages or translates:
        return [[] for _ in range(request.copies if request.messages else len(request.texts))]
    return tokenizer.encode_batch([normalise_verbatim(well_formed(text)) for text in request.texts])


async def _respond(
    http_request: Request, body: OpenAIBody, request: TextRequest, *, echo: bool = False
) -> Response:
    """Decode, and return the whole response or a stream of events."""
    chat, prompts = bool(request.messages), [""] * request.copies
    if not chat:
        prompts = list(request.texts) if echo else [""] * len(request.texts)
    kind = "chat.completion" if chat else "text_completion"
    head = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
        "object": f"{kind}.chunk" if chat and body.stream else kind,
        "created": int(time.time()),
        "model": body.model,
    }
    engine: Engine = http_request.app.state.engine
    http_request.scope["facts"] |= {"model": body.model, "characters": request.characters}
    deltas = _stream_choices(engine, request, stops=body.stops, tokens=body.stream)
    if not body.stream:
        whole = await while_connected(http_request, _whole(deltas, prompts, chat=chat))
        return JSONResponse(head | whole)
    usage = body.stream_options is not None and body.stream_options.include_usage
    chunks = started(_chunks(deltas, prompts, head, chat=chat, usage=usage))
    return event_response(await while_connected(http_request, chunks))


async def _whole(
    deltas: AsyncGenerator[ChoiceDelta, None], texts: list[str], *, chat: bool
) -> dict[str, Any]:
    last: dict[int, ChoiceDelta] = {}
    async for delta in deltas:
        texts[delta.choice] += delta.text
        last[delta.choice] = delta
    choices = []
    for number, text in enumerate(texts):
        written = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        finish = last[number].finish
        choices.append({"index": number, **written, "logprobs": None, "finish_reason": finish})
    return {"choices": choices, "usage": _usage(list(last.values()))}


async def _chunks(
    deltas: AsyncGenerator[ChoiceDelta, None],
    prompts: list[str],
    head: dict[str, Any],
    *,
    chat: bool,
    usage: bool,
) -> AsyncGenerator[Any, None]:
    begun: set[int] = set()
    done: list[ChoiceDelta] = []

    def chunk(number: int, text: str, finish: str | None) -> dict[str, Any]:
        role = {} if number in begun else {"role": "assistant"}
        written: dict[str, Any] = {"text": text, "logprobs": None}
        if chat:
            written = {"delta": {**role, "content": text}}
        begun.add(number)
        return head | {"choices": [{"index": number, **written, "finish_reason": finish}]}

    for number, text in enumerate(prompts):
        if text:
            yield chunk(number, text, None)
    async for delta in deltas:
        yield chunk(delta.choice, delta.text, delta.finish)
        done += [delta] if delta.finish else []
    if usage:
        yield head | {"choices": [], "usage": _usage(done)}


def _usage(done: list[ChoiceDelta]) -> dict[str, int]:
    read, written = sum(delta.read for delta in done), sum(delta.written for delta in done)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


class Part(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(max_length=64)]
    name: Annotated[str, Field(max_length=64)] | None = None

    @property
    def plain(self) -> dict[str, str]:
        """Role and text, for a chat template."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": self.role, "content": text}


class ChatBody(OpenAIBody):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=256)]
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


@router.post("/chat/completions", response_model=None, responses=STREAMED)
async def chat(request: Request, body: ChatBody) -> Response:
    """Continue a conversation."""
    priority = read_priority(body.priority, admit(request))
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ConfigError("max_tokens", "is set as max_completion_tokens too; leave one out")
    text_request = TextRequest(
        model=body.model,
        messages=[message.plain for message in body.messages],
        copies=body.n,
        options=body.decode_options(body.max_completion_tokens or body.max_tokens),
        priority=priority,
        seconds=body.deadline,
    )
    return await _respond(request, body, text_request)


class CompletionBody(OpenAIBody):
    """Body of `/v1/completions`."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=256)]
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    echo: bool = False
    """Whether to begin each text with its prompt."""
    source: Code | None = None
    """Extension: language of the prompts, for a multilingual model."""
    target: Code | None = None
    """Extension: language to translate to."""


@router.post("/completions", response_model=None, responses=STREAMED)
async def complete(request: Request, body: CompletionBody) -> Response:
    """Continue prompts; a translation model translates them."""
    priority = read_priority(body.priority, admit(request))
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    text_request = TextRequest(
        model=body.model,
        texts=[prompt for prompt in prompts for _ in range(body.n)],
        source=body.source,
        target=body.target,
        options=body.decode_options(body.max_tokens),
        priority=priority,
        seconds=body.deadline,
    )
    return await _respond(request, body, text_request, echo=body.echo)


Name = Annotated[str, Path(max_length=200)]


@router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    """List the models."""
    engine: Engine = request.app.state.engine
    described = [_describe(spec, engine) for spec in engine.registry.specs.values()]
    return {"object": "list", "data": described}


@router.get("/models/{name}")
async def model(request: Request, name: Name) -> dict[str, Any]:
    """Describe one model."""
    engine: Engine = request.app.state.engine
    spec = engine.registry.specs.get(name)
    if spec is None:
        raise UnknownError(f"no model is called {name[:100]!r}")
    return _describe(spec, engine)


def _describe(spec: Spec, engine: Engine) -> dict[str, Any]:
    """Return OpenAI's fields, and extensions: the task, the languages and the state."""
    return {
        "id": spec.name,
        "object": "model",
        "created": spec.modified,
        "owned_by": "outrider",
        "task": "generate" if spec.generates else "translate",
        "languages": list(spec.pair) if spec.pair else list(spec.languages),
        "loaded": spec.name in engine.registry.loaded,
    }
