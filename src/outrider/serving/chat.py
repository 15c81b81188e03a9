"""OpenAI's `/v1/chat/completions`, for language models that have a chat template."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import ConfigError
from outrider.serving.engine import Ask
from outrider.serving.events import STREAMED
from outrider.serving.fields import read_priority
from outrider.serving.keys import admit
from outrider.serving.openai_answer import OpenAIAnswer
from outrider.serving.openai_fields import OpenAIBody

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
    return await _Answer(body, ask, prefix="chatcmpl", kind=kind).respond(request)


class _Answer(OpenAIAnswer):
    def choice(self, number: int, text: str, finish: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {"index": number, "message": message, "logprobs": None, "finish_reason": finish}

    def delta(self, number: int, text: str, finish: str | None, *, first: bool) -> dict[str, Any]:
        role = {"role": "assistant"} if first else {}
        return {"index": number, "delta": {**role, "content": text}, "finish_reason": finish}
