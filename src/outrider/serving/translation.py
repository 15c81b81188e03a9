"""Translation between languages, for every API: routes, detection, mark-up and alternatives.

    service = TranslationService(engine)
    translation = await service.translate(["Wo ist der Bahnhof?"], "de", "pt")

A route is a model of the language pair, a multilingual model, or two models with a language between
them. On a route of two models, each sentence enters the second when it leaves the first.

Models get sentences without mark-up; placeholders, addresses, code and tags return by alignment,
in plain text too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from outrider.documents.html_elements import Rules
from outrider.documents.marked import MarkedText
from outrider.documents.translate import Prepared
from outrider.errors import ConfigError
from outrider.languages import AUTO, language_name, normalise_code
from outrider.options import decode_config
from outrider.runtime import Result
from outrider.serving.engine import Engine
from outrider.serving.languages import Detected, detect_language
from outrider.serving.markup import read_sources, write_sources
from outrider.serving.request import Priority, RequestHandle, TextRequest, TooLargeError
from outrider.serving.routes import Language, Route, Routes, pair_of
from outrider.text.alignment import Link, compose
from outrider.text.sentences import join_at

if TYPE_CHECKING:
    from outrider.text.glossary import Glossary

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


class _Plan(NamedTuple):
    """A request with the models that answer it."""

    route: Route
    request: TextRequest
    source: str
    target: str
    detected: Detected | None
    models: tuple[str, ...]


class TranslationService:
    """Translates and detects with the models of an engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        guard: bool = False,
        terms: "Mapping[tuple[str, str], Glossary] | None" = None,
    ) -> None:
        """Serve an engine.

        Args:
            engine: Its models translate.
            guard: Whether sentences with faults are decoded another way.
            terms: Glossaries of requests without one, by the normal codes of two languages.
        """
        self.engine, self.guard, self._terms = engine, guard, terms or {}
        self._routes = Routes(engine.registry.specs, memory=engine.registry.memory)

    async def translate(
        self,
        texts: Sequence[str],
        source: str | None,
        target: str | None,
        *,
        html: bool | Rules = False,
        alternatives: int = 0,
        options: Mapping[str, Any] | None = None,
        split: bool | None = None,
        glossary: "Glossary | None" = None,
        priority: Priority = Priority.normal,
        seconds: float | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Translation:
        """Translate texts of one language; cancelling the task cancels the decoding.

        Args:
            texts: The texts.
            source: Code of their language, in any form; None or `auto` to detect it.
            target: Code of the language to translate to; None or `auto` for the only one.
            html: Whether the texts are HTML, or the rules of the elements of HTML or XML.
            alternatives: Number of further translations of each text, by beam search.
            options: Fields of `DecodeConfig`.
            split: Whether to translate sentence by sentence; None for the model's default.
            glossary: Terms and their translations; refused if the route has two models.
            priority: Share of decoding time.
            seconds: Time limit for all models together.
            facts: Receives `model`, `pair` and `characters` for the log before decoding.
        """
        characters, most = sum(map(len, texts)), self.engine.limits.characters
        if characters > most:
            raise TooLargeError(f"send at most {most:,} characters at once")
        request = TextRequest(
            model="",
            split=split,
            guard=self.guard,
            glossary=glossary,
            priority=priority,
            seconds=seconds,
            began=self.engine.now,
        )
        sources = await self.engine.run_in_worker(read_sources, texts, html)
        # Empty texts are sent too, because text number i samples with `seed + i`.
        sent = [one for read in sources for one in read.prepared]
        request = replace(request, texts=[one.text for one in sent])
        plan = await self._plan(request, source, target, facts)
        given, ranks = dict(options or {}), alternatives + 1
        if any(one.needs_alignment for one in sent):
            given["alignment"] = True
        results = [[Result("")] for _ in sent]
        if any(one.text for one in sent):
            results = await self._run(plan.route, plan.request, given, alternatives)
        translated = [[text] * ranks for text in texts]
        if plan.route:
            translated = await self.engine.run_in_worker(write_sources, sources, results, ranks)
        codes = plan.source, plan.target, plan.detected
        faults = _faults(results)
        if faults and facts is not None:
            facts["faults"] = faults
        missing = sum(len(several[0].missing_terms) for several in results)
        if missing and facts is not None:
            facts["missing_terms"] = missing
        return Translation(translated, *codes, characters, plan.models, faults)

    async def translate_marked(
        self,
        texts: Sequence[MarkedText],
        source: str | None,
        target: str | None,
        *,
        priority: Priority = Priority.normal,
        facts: dict[str, Any] | None = None,
    ) -> tuple[list[MarkedText], str]:
        """Translate texts with mark-up; also return the code of the source language."""
        prepared = await self.engine.run_in_worker(lambda: [Prepared(text) for text in texts])
        sent = [one for one in prepared if one.text]
        if not sent:
            return list(texts), normalise_code(source or AUTO)
        request = TextRequest(
            model="",
            texts=[one.text for one in sent],
            guard=self.guard,
            priority=priority,
            began=self.engine.now,
        )
        plan = await self._plan(request, source, target, facts)
        options = {"alignment": True} if any(one.needs_alignment for one in sent) else {}
        results = await self._run(plan.route, plan.request, options, 0)

        def finish() -> list[MarkedText]:
            done = iter([one.finish(best) for one, (best, *_) in zip(sent, results, strict=True)])
            return [next(done) if one.text else one.marked for one in prepared]

        return await self.engine.run_in_worker(finish), plan.source

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

    async def _plan(
        self,
        request: TextRequest,
        source: str | None,
        target: str | None,
        facts: dict[str, Any] | None,
    ) -> "_Plan":
        """Detect the source language if needed, and find the models."""
        source, target, detected = await self._resolve(
            request.texts, source or AUTO, target or AUTO
        )
        route = self._routes.find(source, target)
        if target == AUTO and route and (pair := route[0].spec.pair) is not None:
            if source == AUTO:
                detected = Detected(normalise_code(pair[0]), 100.0)
            source, target = pair
        models = tuple(hop.spec.name for hop in route)
        if facts is not None:
            facts |= {"model": "+".join(models), "pair": pair_of(route)}
            facts["characters"] = request.characters
        codes = normalise_code(source), normalise_code(target)
        if request.glossary is None and len(route) == 1:
            request = replace(request, glossary=self._terms.get(codes))
        return _Plan(route, request, *codes, detected, models)

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
    ) -> list[list[Result]]:
        """Translate by a route; return the translations of each text, best first."""
        if not route:
            return [[_unchanged(text)] for text in request.texts]
        *first, last = (
            replace(request, model=hop.spec.name, source=hop.source, target=hop.target)
            for hop in route
        )
        last = replace(last, options=_with_alternatives(options, alternatives))
        if not first:
            return await self.engine.answer(last)
        if request.glossary is not None:
            message = "needs one model for both languages, but this route has two"
            raise ConfigError("glossary", f"{message}; leave it out")
        # A translation that is drawn at random is drawn once, by the last model.
        if decode_config(options).strategy == "sample":
            options = {"alignment": True} if options.get("alignment") else {}
        return await self._run_both(replace(first[0], options=options), last)

    async def _run_both(self, first: TextRequest, second: TextRequest) -> list[list[Result]]:
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
            return await self.engine.run_in_worker(_join, handle, following)


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


def _unchanged(text: str) -> Result:
    """Return a text as its own translation."""
    words = (match.span() for match in re.finditer(r"\S+", text))
    return Result(text, alignment=tuple(Link(word, word) for word in words))


def _join(first: RequestHandle, second: RequestHandle) -> list[list[Result]]:
    """Join the sentences of the second model with the white space of the source.

    Alternative k of a text joins alternative k of its sentences.
    """
    pieces, sentences = iter(second.results()), count()
    texts = []
    for number, work in enumerate(first.works):
        parts = [next(pieces) for _ in work.requests]
        (between, *_) = first.beginning(number)[1]
        sources = [first.piece_text(next(sentences)) for _ in parts]
        texts.append(
            [_join_aligned(between, sources, chosen, work.gaps) for chosen in _by_rank(parts)]
        )
    return texts


def _join_aligned(
    between: Result, sources: Sequence[str], parts: Sequence[Result], gaps: Sequence[str]
) -> Result:
    """Join the sentences of the second model, and align them with the source of the first.

    Args:
        between: The text of the first model.
        sources: Its sentences.
        parts: Their translations.
        gaps: White space between the sentences of the source.
    """
    joined, starts = join_at([part.text for part in parts], gaps)
    faults = _faults([[between], *([part] for part in parts)])
    if between.alignment is None:
        return Result(joined, faults=faults)
    links: list[Link] = []
    offsets = join_at(sources, gaps)[1]
    for part, offset, start in zip(parts, offsets, starts, strict=True):
        for (left, right), (first, last) in part.alignment or ():
            links.append(Link((left + offset, right + offset), (first + start, last + start)))
    return Result(joined, faults=faults, alignment=compose(between.alignment, tuple(links)))


def _by_rank(parts: Sequence[Sequence[Result]]) -> Iterator[list[Result]]:
    for rank in range(max(map(len, parts), default=1)):
        yield [_of_rank(several, rank) for several in parts]


def _of_rank(several: Sequence[Result], rank: int) -> Result:
    """Return an alternative, or the last one."""
    return several[min(rank, len(several) - 1)]
