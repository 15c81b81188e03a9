"""Server-sent events, and a text that is told as it grows."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse

from outrider.errors import OutriderError
from outrider.serving.answers import RefusalError
from outrider.text.tokenizer import Tokenizer

__all__ = ["STREAMED", "TextStream", "event_response", "started"]

CONTEXT = 8
"""Tokens before the newest that a tokenizer is shown, to write them as they stand in a text."""

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The texts, whole or as events.",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}
"""What a route that may stream answers, for the OpenAPI schema."""


class TextStream:
    """Tokens in, what they add to the text out."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        """Begin behind a prompt, of which the last tokens are enough."""
        self._tokenizer = tokenizer
        self._tokens = list(before[-CONTEXT:])
        self._from, self._told = 0, len(self._tokens)

    def add(self, tokens: Sequence[int]) -> str:
        """Take tokens in and return what can be told of them."""
        self._tokens += tokens
        known = self._tokenizer.decode(self._tokens[self._from : self._told])
        whole = self._tokenizer.decode(self._tokens[self._from :])
        if len(whole) <= len(known):
            return ""
        self._from, self._told = self._told, len(self._tokens)
        return whole[len(known) :]


async def started(values: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Wait for the first of some values, so that a refusal comes before an answer has begun."""
    first = await anext(values, None)

    async def all_of() -> AsyncGenerator[Any, None]:
        async with aclosing(values):
            if first is not None:
                yield first
            async for value in values:
                yield value

    return all_of()


def event_response(values: AsyncGenerator[Any, None]) -> StreamingResponse:
    """Send values as server-sent events and `[DONE]` after the last, as OpenAI does."""

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(values):
            try:
                async for value in values:
                    yield b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
            except OutriderError as error:  # too late for a status
                kind = error.kind if isinstance(error, RefusalError) else "invalid_request_error"
                told = {"error": {"message": str(error), "type": kind, "code": None}}
                yield b"data: " + json.dumps(told).encode() + b"\n\n"
                return
        yield b"data: [DONE]\n\n"

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)
