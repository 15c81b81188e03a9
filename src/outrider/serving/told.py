"""Texts as OpenAI's API tells them: choices that grow, and end where they were asked to stop."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from outrider.runtime import Generator
from outrider.serving.engine import Ask, Engine, Finished, Progress
from outrider.serving.events import TextStream
from outrider.text.normalise import normalise_verbatim, well_formed
from outrider.text.tokenizer import Tokenizer

__all__ = ["Choice", "ChoiceDelta", "tell"]


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one choice has grown by."""

    choice: int
    text: str
    finish: str | None = None
    """`stop` or `length`, once it is done."""
    read: int = 0
    """Tokens of the prompt, once it is done."""
    written: int = 0
    """Tokens of the text, once it is done."""


class Choice:
    """A text on its way: what has been said, what has been told, and where it stops."""

    def __init__(
        self,
        number: int,
        stops: Sequence[str],
        stream: TextStream | None,
        translates: bool,
    ) -> None:
        self._number, self._stops = number, stops
        self._stream = stream
        """None where no beginning of a sentence is known before its end."""
        self._translates = translates
        """Then blanks around a text are none of it."""
        self._said = ""
        self._told = self._written = self._read = 0
        self.done = False

    def hear(self, event: Progress) -> ChoiceDelta | None:
        """Take tokens in, and say what can be told."""
        self._written, self._read = self._written + len(event.tokens), event.read
        # Only the first sentence of a translation grows word by word.
        if event.piece or self._stream is None:
            return None
        self._said += self._stream.add(event.tokens)
        if self._translates:
            self._said = self._said.lstrip()
        return self._tell(None)

    def finish(self, event: Finished) -> ChoiceDelta | None:
        """Take in what the text has come to, all of it or a beginning."""
        best = event.results[0]
        if best.text.startswith(self._said[: self._told]):
            self._said = best.text
        if not event.done:
            return self._tell(None)
        self._written, self._read = len(best.tokens), event.read
        return self._tell("length" if best.finish == "length" else "stop")

    def _tell(self, finish: str | None) -> ChoiceDelta | None:
        ends = [place for stop in self._stops if (place := self._said.find(stop)) >= 0]
        end = min(ends) if ends else len(self._said)
        if ends:
            finish = "stop"
        elif finish is None:
            end -= self._held_back()
            end = len(self._said[:end].rstrip()) if self._translates else end
        new, self._told = self._said[self._told : end], max(end, self._told)
        self.done = finish is not None
        if not new and not self.done:
            return None
        return ChoiceDelta(self._number, new, finish, self._read, self._written)

    def _held_back(self) -> int:
        """Count the last letters that may turn out to begin a stop."""
        longest = max(map(len, self._stops), default=1) - 1
        tail = self._said[len(self._said) - longest :] if longest else ""
        for start in range(len(tail)):
            if any(stop.startswith(tail[start:]) for stop in self._stops):
                return len(tail) - start
        return 0


async def tell(
    engine: Engine, ask: Ask, *, stops: Sequence[str] = (), tokens: bool
) -> AsyncGenerator[ChoiceDelta, None]:
    """Yield what choices grow by; token by token, or only as far as stops make it necessary."""
    async with engine.shelf.hold(ask.model, seconds=engine.limits.seconds) as loaded:
        tokenizer = loaded.model.tokenizer
        translates = not isinstance(loaded.model, Generator)
        grows = isinstance(loaded.model, Generator) or not loaded.model.right_to_left
    befores = await engine.beside(_openings, ask, tokenizer, translates)
    choices = [
        Choice(number, stops, TextStream(tokenizer, before) if grows else None, translates)
        for number, before in enumerate(befores)
    ]
    async with aclosing(engine.stream(ask, tokens=tokens or bool(stops))) as events:
        async for event in events:
            choice = choices[event.text]
            if choice.done:  # it was asked to stop, and others go on
                continue
            told = choice.finish(event) if isinstance(event, Finished) else choice.hear(event)
            if told is not None:
                yield told
            if all(one.done for one in choices):
                return


def _openings(ask: Ask, tokenizer: Tokenizer, translates: bool) -> list[list[int]]:
    """Return the tokens that each choice continues."""
    if ask.messages or translates:
        return [[] for _ in range(ask.copies if ask.messages else len(ask.texts))]
    return tokenizer.encode_batch([normalise_verbatim(well_formed(text)) for text in ask.texts])
