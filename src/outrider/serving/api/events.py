"""Server-sent events, and incremental decoding of tokens to text."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse

from outrider.errors import OutriderError
from outrider.serving.errors import RefusalError
from outrider.text.tokenizer import Tokenizer

EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

CONTEXT = 8
"""Tokens of context that are decoded together with new tokens."""

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The texts, whole or as events.",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}
"""Response of a route that may stream, for the OpenAPI schema."""


class TextStream:
    """Converts tokens to text incrementally."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        """Begin after the tokens of a prompt."""
        self._tokenizer = tokenizer
        self._tokens = list(before[-CONTEXT:])
        self._start, self._end = 0, len(self._tokens)
        """The newest tokens whose text was returned; earlier ones are not decoded again."""

    def add(self, tokens: Sequence[int]) -> str:
        """Append tokens and return the new text; incomplete characters are withheld."""
        self._tokens += tokens
        old = self._tokenizer.decode(self._tokens[self._start : self._end])
        text = self._tokenizer.decode(self._tokens[self._start :])
        if len(text) <= len(old):
            return ""
        self._start, self._end = self._end, len(self._tokens)
        return text[len(old) :]


async def started(values: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Wait for the first value, so that an error is raised before the response begins."""
    first = await anext(values, None)

    async def continued() -> AsyncGenerator[Any, None]:
        async with aclosing(values):
            if first is not None:
                yield first
            async for value in values:
                yield value

    return continued()


def event_response(values: AsyncGenerator[Any, None]) -> StreamingResponse:
    """Send values as server-sent events, followed by `[DONE]` as in OpenAI's API."""

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(values):
            try:
                async for value in values:
                    yield b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
            except OutriderError as error:  # the status is already sent
                kind = error.kind if isinstance(error, RefusalError) else "invalid_request_error"
                value = {"error": {"message": str(error), "type": kind, "code": None}}
                yield b"data: " + json.dumps(value).encode() + b"\n\n"
                return
        yield b"data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers=EVENT_HEADERS)
