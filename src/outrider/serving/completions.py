"""OpenAI's `/v1/completions`: prompts continued, or with a translation model translated."""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from outrider.serving.engine import Ask
from outrider.serving.events import STREAMED
from outrider.serving.fields import Code, read_priority
from outrider.serving.keys import admit
from outrider.serving.openai_answer import OpenAIAnswer
from outrider.serving.openai_fields import OpenAIBody

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["OpenAI"])


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
    return await _Answer(body, ask, prefix="cmpl", kind="text_completion").respond(request)


class _Answer(OpenAIAnswer):
    body: CompletionBody

    def openings(self) -> list[str]:
        return list(self.ask.texts) if self.body.echo else super().openings()

    def choice(self, number: int, text: str, finish: str | None) -> dict[str, Any]:
        return {"index": number, "text": text, "logprobs": None, "finish_reason": finish}

    def delta(self, number: int, text: str, finish: str | None, *, first: bool) -> dict[str, Any]:
        return self.choice(number, text, finish)
