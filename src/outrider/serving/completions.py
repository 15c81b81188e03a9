"""OpenAI's `/v1/completions`: prompts continued, or with a translation model translated."""

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.responses import JSONResponse

from outrider.serving.client import while_there
from outrider.serving.engine import Ask, Engine
from outrider.serving.events import STREAMED, event_response, started
from outrider.serving.fields import Code, read_priority
from outrider.serving.keys import admit
from outrider.serving.openai_fields import OpenAIBody
from outrider.serving.told import Told, tell

__all__ = ["router", "usage"]

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
    engine: Engine = request.app.state.engine
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
    request.scope["facts"] |= {"model": body.model, "characters": ask.characters}
    told = tell(engine, ask, stops=body.stops, tokens=body.stream)
    answer = _Answer(body, ask)
    if body.stream:
        return event_response(await while_there(request, started(answer.chunks(told))))
    return JSONResponse(await while_there(request, answer.whole(told)))


class _Answer:
    """One answer, whole or in chunks."""

    def __init__(self, body: CompletionBody, ask: Ask) -> None:
        self._body, self._ask = body, ask
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
        }

    async def whole(self, told: AsyncGenerator[Told, None]) -> dict[str, Any]:
        """Wait for all texts."""
        echo = self._body.echo
        texts = list(self._ask.texts) if echo else [""] * len(self._ask.texts)
        last: dict[int, Told] = {}
        async for one in told:
            texts[one.choice] += one.text
            last[one.choice] = one
        choices = [self._choice(n, text, last[n].finish) for n, text in enumerate(texts)]
        return self._head | {"choices": choices, "usage": usage(list(last.values()))}

    async def chunks(self, told: AsyncGenerator[Told, None]) -> AsyncGenerator[Any, None]:
        """Yield texts as they grow."""
        done = []
        if self._body.echo:
            for number, prompt in enumerate(self._ask.texts):
                yield self._head | {"choices": [self._choice(number, prompt, None)]}
        async for one in told:
            yield self._head | {"choices": [self._choice(one.choice, one.text, one.finish)]}
            done += [one] if one.finish else []
        if self._body.stream_options and self._body.stream_options.include_usage:
            yield self._head | {"choices": [], "usage": usage(done)}

    def _choice(self, number: int, text: str, finish: str | None) -> dict[str, Any]:
        return {"index": number, "text": text, "logprobs": None, "finish_reason": finish}


def usage(done: list[Told]) -> dict[str, int]:
    """Count tokens as OpenAI does."""
    read, written = sum(one.read for one in done), sum(one.written for one in done)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
