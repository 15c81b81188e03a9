"""How OpenAI's completions and chats are answered: whole, or in chunks as the texts grow."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outrider.serving.client import while_there
from outrider.serving.engine import Ask, Engine
from outrider.serving.events import event_response, started
from outrider.serving.openai_fields import OpenAIBody
from outrider.serving.told import Told, tell

__all__ = ["OpenAIAnswer"]


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

    async def _whole(self, told: AsyncGenerator[Told, None]) -> dict[str, Any]:
        texts = self.openings()
        last: dict[int, Told] = {}
        async for one in told:
            texts[one.choice] += one.text
            last[one.choice] = one
        choices = [self.choice(n, text, last[n].finish) for n, text in enumerate(texts)]
        return self._head | {"choices": choices, "usage": _usage(list(last.values()))}

    async def _chunks(self, told: AsyncGenerator[Told, None]) -> AsyncGenerator[Any, None]:
        begun: set[int] = set()
        done: list[Told] = []
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


def _usage(done: list[Told]) -> dict[str, int]:
    """Count tokens as OpenAI does."""
    read, written = sum(one.read for one in done), sum(one.written for one in done)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
