"""Translation between languages, for every API: routes, detection, HTML and alternatives.

    service = TranslationService(engine)
    translation = await service.translate(["Wo ist der Bahnhof?"], "de", "pt")

A route is a model of the language pair, a multilingual model, or two models with a language between
them. On a route of two models, each sentence enters the second when it leaves the first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider.errors import ConfigError
from outrider.languages import AUTO, language_name, normalise_code
from outrider.options import decode_config
from outrider.runtime import Result
from outrider.serving.engine import Engine
from outrider.serving.html import read_page
from outrider.serving.languages import Detected, detect_language
from outrider.serving.request import Priority, RequestHandle, TextRequest, TooLargeError
from outrider.serving.routes import Language, Route, Routes, pair_of
from outrider.text.sentences import join

BEAMS = 4
"""Fewest beams for alternatives."""


@dataclass(frozen=True)
class Translation:
    """The answer to one request."""

    texts: list[list[str]]
    """For each text its translations, best first: one, and as many alternatives as requested."""
    source: str
    """Normal code of the source language; `auto` if unknown."""
    target: str
    detected: Detected | None
    """The source language with its confidence; None if the client named it."""
    characters: int
    """Characters of the texts, as they were sent."""
    models: tuple[str, ...]
    faults: tuple[str, ...] = ()
    """Faults of sentences that no other decoding corrected, see `Result.faults`."""


class TranslationService:
    """Translates and detects with the models of an engine."""

    def __init__(self, engine: Engine, *, guard: bool = False) -> None:
        """Serve an engine; with `guard`, sentences with faults are decoded another way."""
        self.engine, self.guard = engine, guard
        self._routes = Routes(engine.registry.specs, memory=engine.registry.memory)

    async def translate(
        self,
        texts: Sequence[str],
        source: str | None,
        target: str | None,
        *,
        html: bool = False,
        alternatives: int = 0,
        options: Mapping[str, Any] | None = None,
        split: bool | None = None,
        priority: Priority = Priority.normal,
        seconds: float | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Translation:
        """Translate texts of one language; cancelling the task cancels the decoding.

        Args:
            texts: The texts.
            source: Code of their language, in any form; None or `auto` to detect it.
            target: Code of the language to translate to; None or `auto` for the only one.
            html: Whether the texts are HTML, whose tags are kept.
            alternatives: Number of further translations of each text, by beam search.
            options: Fields of `DecodeConfig`.
            split: Whether to translate sentence by sentence; None for the model's default.
            priority: Share of decoding time.
            seconds: Time limit for all models together.
            facts: Receives `model`, `pair` and `characters` for the log before decoding.
        """
        began, limits = self.engine.now, self.engine.limits
        characters = sum(map(len, texts))
        if characters > limits.characters:
            raise TooLargeError(f"send at most {limits.characters:,} characters at once")
        pages = None
        if html:
            pages = await self.engine.run_in_worker(lambda: [read_page(text) for text in texts])
        pieces = [text for page in pages for text in page.texts] if pages is not None else texts
        source, target, detected = await self._resolve(pieces, source or AUTO, target or AUTO)
        route = self._routes.find(source, target)
        if target == AUTO and route and (pair := route[0].spec.pair) is not None:
            if source == AUTO:
                detected = Detected(normalise_code(pair[0]), 100.0)
            source, target = pair
        request = TextRequest(
            model="",
            texts=pieces,
            split=split,
            guard=self.guard,
            priority=priority,
            seconds=seconds,
            began=began,
        )
        models = tuple(hop.spec.name for hop in route)
        if facts is not None:
            facts |= {"model": "+".join(models), "pair": pair_of(route)}
            facts["characters"] = request.characters
        results, faults = await self._run(route, request, options or {}, alternatives)
        if faults and facts is not None:
            facts["faults"] = faults
        ranks = range(alternatives + 1)
        ranked = [[several[min(rank, len(several) - 1)] for several in results] for rank in ranks]
        if pages is not None:
            for rank in ranks:
                left = iter(ranked[rank])
                ranked[rank] = [page.write([next(left) for _ in page.places]) for page in pages]
        return Translation(
            [list(several) for several in zip(*ranked, strict=True)],
            normalise_code(source),
            normalise_code(target),
            detected,
            characters,
            models,
            faults,
        )

    async def detect(self, text: str) -> list[Detected]:
        """Return the served languages that a text may be in, the most likely first."""
        if len(text) > (most := self.engine.limits.characters):
            raise TooLargeError(f"send at most {most:,} characters at once")
        known = [language.code for language in self.languages if language.code != AUTO]
        return await self.engine.run_in_worker(detect_language, text, known)

    @property
    def languages(self) -> list[Language]:
        """Source languages with their targets, in the order of their codes."""
        return self._routes.languages

    def name(self, code: str) -> str:
        """Return the name of a language by its normal code."""
        return self._routes.names.get(code) or language_name(code)

    async def _resolve(
        self, texts: Sequence[str], source: str, target: str
    ) -> tuple[str, str, Detected | None]:
        """Detect the source language if the client did not name it."""
        if source != AUTO or target == AUTO:
            return source, target, None
        known = self._routes.sources(target)
        if not known:
            raise self._routes.unknown(AUTO, target)
        if len(known) == 1:
            return known[0], target, Detected(known[0], 100.0)
        # A text that is in the target language is returned unchanged.
        known.append(normalise_code(target))
        ranked = await self.engine.run_in_worker(detect_language, " ".join(texts), known)
        if not ranked:
            raise ConfigError("source", "cannot detect the language of this text; name it")
        return ranked[0].code, target, ranked[0]

    async def _run(
        self, route: Route, request: TextRequest, options: Mapping[str, Any], alternatives: int
    ) -> tuple[list[list[str]], tuple[str, ...]]:
        """Translate by a route; return the translations of each text, best first, and faults."""
        if not route:
            return [[text] for text in request.texts], ()
        *first, last = (
            replace(request, model=hop.spec.name, source=hop.source, target=hop.target)
            for hop in route
        )
        last = replace(last, options=_with_alternatives(options, alternatives))
        if not first:
            results = await self.engine.answer(last)
            return [[result.text for result in several] for several in results], _faults(results)
        # A translation that is drawn at random is drawn once, by the last model.
        drawn = decode_config(options).strategy == "sample"
        return await self._run_both(replace(first[0], options={} if drawn else options), last)

    async def _run_both(
        self, first: TextRequest, second: TextRequest
    ) -> tuple[list[list[str]], tuple[str, ...]]:
        async with (
            self.engine.hold_all(first, second),
            self.engine.admit(first) as handle,
            self.engine.admit_after(replace(second, split=False), handle) as (following, add),
        ):
            while handle.left and not following.cancelled:
                numbers = [(await handle.next())[0]]
                while handle.waiting:
                    numbers.append((await handle.next())[0])
                await self.engine.revise(first, handle, numbers)
                await add(numbers)
            while following.left:
                await following.next()
            await self.engine.revise(second, following, range(len(following.requests)))
            faults = _faults([*handle.results(), *following.results()])
            return await self.engine.run_in_worker(_join, handle, following), faults


def _with_alternatives(options: Mapping[str, Any], alternatives: int) -> dict[str, Any]:
    """Return the decode options; alternatives use beam search unless candidates are sampled."""
    given = dict(options)
    if alternatives:
        key = "candidates" if "candidates" in given else "beams"
        given.setdefault(key, max(BEAMS, alternatives + 1))
        given["n_best"] = alternatives + 1
    return given


def _faults(results: Sequence[Sequence[Result]]) -> tuple[str, ...]:
    """Return the faults of the best results."""
    return tuple(dict.fromkeys(fault for several in results for fault in several[0].faults))


def _join(first: RequestHandle, second: RequestHandle) -> list[list[str]]:
    """Join the sentences of the second model with the white space of the source.

    Alternative k of a text joins alternative k of its sentences.
    """
    pieces = iter(second.results())
    texts = []
    for work in first.works:
        parts = [next(pieces) for _ in work.requests]
        texts.append([join(chosen, work.gaps) for chosen in _by_rank(parts)])
    return texts


def _by_rank(parts: Sequence[Sequence[Result]]) -> Iterator[list[str]]:
    for rank in range(max(map(len, parts), default=1)):
        yield [several[min(rank, len(several) - 1)].text for several in parts]
