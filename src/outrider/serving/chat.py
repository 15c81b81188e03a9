"""OpenAI's `/v1/chat/completions`, for language models that have a chat template."""

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from outrider.errors import ConfigError
from outrider.serving.client import while_there
from outrider.serving.completions import usage
from outrider.serving.engine import Ask, Engine
from outrider.serving.events import STREAMED, event_response, started
from outrider.serving.fields import read_priority
from outrider.serving.keys import admit
from outrider.serving.openai_fields import OpenAIBody
from outrider.serving.told import Told, tell

__all__ = ["router"]

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
    engine: Engine = request.app.state.engine
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
    request.scope["facts"] |= {"model": body.model, "characters": ask.characters}
    told = tell(engine, ask, stops=body.stops, tokens=body.stream)
    answer = _Answer(body)
    if body.stream:
        return event_response(await while_there(request, started(answer.chunks(told))))
    return JSONResponse(await while_there(request, answer.whole(told)))


class _Answer:
    """One answer, whole or in chunks."""

    def __init__(self, body: ChatBody) -> None:
        self._body = body
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": body.model,
        }

    async def whole(self, told: AsyncGenerator[Told, None]) -> dict[str, Any]:
        """Wait for all answers."""
        texts = [""] * self._body.n
        last: dict[int, Told] = {}
        async for one in told:
            texts[one.choice] += one.text
            last[one.choice] = one
        choices = [
            {
                "index": number,
                "message": {"role": "assistant", "content": text},
                "logprobs": None,
                "finish_reason": last[number].finish,
            }
            for number, text in enumerate(texts)
        ]
        return self._head | {"choices": choices, "usage": usage(list(last.values()))}

    async def chunks(self, told: AsyncGenerator[Told, None]) -> AsyncGenerator[Any, None]:
        """Yield answers as they grow."""
        begun: set[int] = set()
        done = []
        async for one in told:
            delta = {"content": one.text}
            if one.choice not in begun:
                delta["role"] = "assistant"
                begun.add(one.choice)
            choice = {"index": one.choice, "delta": delta, "finish_reason": one.finish}
            yield self._head | {"choices": [choice]}
            done += [one] if one.finish else []
        if self._body.stream_options and self._body.stream_options.include_usage:
            yield self._head | {"choices": [], "usage": usage(done)}
