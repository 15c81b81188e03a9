"""Routes between languages: one model, or two with a language between them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from outrider.errors import ConfigError
from outrider.languages import AUTO, language_name, match_codes, normalise_code
from outrider.serving.registry import Spec
from outrider.serving.request import UnknownError

PIVOTS = ("en",)
"""Languages that are tried first between two others."""


@dataclass(frozen=True)
class Hop:
    """A model on a route, with its own codes of the languages that a request must name."""

    spec: Spec
    source: str | None = None
    target: str | None = None


Route = tuple[Hop, ...]
"""One model or two; none if source and target are the same language."""


@dataclass(frozen=True)
class Language:
    """A source language and what it can be translated to, by normal codes."""

    code: str
    name: str
    targets: tuple[str, ...]
    pivots: Mapping[str, str] = field(default_factory=dict)
    """The language between, for each target that takes two models."""


class Routes:
    """The routes of a set of models. All codes inside have their normal form."""

    def __init__(self, specs: Mapping[str, Spec], *, memory: int | None = None) -> None:
        """Index the models.

        Args:
            specs: The models by name.
            memory: Most bytes of the weights of a route's models, which are loaded together.
        """
        self._specs, self._memory = specs, memory
        self.names: dict[str, str] = {}
        """Names of languages that models give."""
        self._by_pair: dict[tuple[str, str], Hop] = {}
        self._multilingual: list[tuple[Spec, dict[str, str]]] = []
        """Models of many languages, with their own codes by normal codes."""
        self._direct: dict[str, set[str]] = {}
        """Targets by source, of one model."""
        for spec in specs.values():
            self.names |= {normalise_code(code): one for code, one in spec.language_names.items()}
            if spec.pair is not None:
                source, target = map(normalise_code, spec.pair)
                self._by_pair.setdefault((source, target), Hop(spec))
                self._direct.setdefault(source, set()).add(target)
            codes = {normalise_code(code): code for code in spec.languages}
            if codes:
                self._multilingual.append((spec, codes))
            for source in codes:
                self._direct.setdefault(source, set()).update({*codes} - {source})
        self._targets = {target for targets in self._direct.values() for target in targets}
        self.languages = self._list()
        """Source languages with their targets, in the order of their codes; a model of unknown
        languages translates from `auto` to `auto`."""
        self._reached = {language.code: {*language.targets} for language in self.languages}

    def find(self, source: str, target: str) -> Route:
        """Return the models between two languages; their codes may have any form."""
        if target == AUTO:
            return (Hop(self._find_only(source)),)
        sources = match_codes(source, self._direct) or [normalise_code(source)]
        targets = match_codes(target, self._targets)
        everything = {*self._direct, *self._targets}
        if sources[:1] == match_codes(target, everything)[:1] and sources[0] in everything:
            return ()
        pairs = [(source, target) for source in sources for target in targets]
        for pair in pairs:
            if (hop := self._hop(*pair)) is not None:
                return (hop,)
        for pair in pairs:
            for pivot in _by_preference(self._direct.get(pair[0], ())):
                if (route := self._pivoted(pair[0], pivot, pair[1])) is not None:
                    return route
        raise self.unknown(source, target)

    def sources(self, target: str) -> list[str]:
        """Return the languages that can be translated to a target, by their normal codes."""
        return [
            code
            for code, targets in self._reached.items()
            if code != AUTO and match_codes(target, targets)
        ]

    def unknown(self, source: str, target: str) -> UnknownError:
        """Return the error of a language pair without a route."""
        message = f"cannot translate from {source[:20]!r} to {target[:20]!r}"
        return UnknownError(f"{message}; {self._describe()}")

    def _hop(self, source: str, target: str) -> Hop | None:
        """Return the first model for a language pair; a model of one pair is preferred."""
        if (hop := self._by_pair.get((source, target))) is not None:
            return hop
        for spec, codes in self._multilingual:
            if target in codes and (source in codes or not spec.needs_source):
                return Hop(spec, codes[source] if spec.needs_source else None, codes[target])
        return None

    def _pivoted(self, source: str, pivot: str, target: str) -> Route | None:
        first, second = self._hop(source, pivot), self._hop(pivot, target)
        if first is None or second is None:
            return None
        weights = {hop.spec.name: hop.spec.weights for hop in (first, second)}
        fits = self._memory is None or sum(weights.values()) <= self._memory
        return (first, second) if fits else None

    def _list(self) -> list[Language]:
        languages = [
            Language(
                source,
                self.names.get(source) or language_name(source),
                tuple(sorted({*targets, *(pivots := dict(self._pivots(source, targets)))})),
                pivots,
            )
            for source, targets in self._direct.items()
        ]
        if any(spec.unknown for spec in self._specs.values()):
            languages.append(Language(AUTO, language_name(AUTO), (AUTO,)))
        return sorted(languages, key=lambda language: language.code)

    def _pivots(self, source: str, targets: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the targets that take two models, with the language between them."""
        pivots = _by_preference(targets)
        for target in sorted(self._targets - targets - {source}):
            for pivot in pivots:
                if target in self._direct.get(pivot, ()) and self._pivoted(source, pivot, target):
                    yield target, pivot
                    break

    def _find_only(self, source: str) -> Spec:
        """Return the only model for a source language, or for unknown languages."""
        models = [spec for spec in self._specs.values() if not spec.generates]
        if source != AUTO:
            sources = match_codes(source, self._direct)
            models = [
                spec for spec in models if spec.pair and normalise_code(spec.pair[0]) in sources
            ]
        elif any(spec.unknown for spec in models):  # models of known languages are named by them
            models = [spec for spec in models if spec.unknown]
        if len(models) == 1 and not models[0].languages:
            return models[0]
        raise ConfigError("target", f"name the target language; {self._describe()}")

    def _describe(self) -> str:
        """List the language pairs of the models for an error message."""
        specs = self._specs.values()
        pairs = [f"{spec.pair[0]} to {spec.pair[1]}" for spec in specs if spec.pair]
        many = [f"any of {len(spec.languages)} languages" for spec in specs if spec.languages]
        unknown = [spec.name for spec in specs if spec.unknown]
        available = f"available: {', '.join([*pairs, *many][:20]) or 'no model of known languages'}"
        if not unknown:
            return available
        named = f"{unknown[0]}, start the server with en-de=FOLDER"
        if len(unknown) == 1:
            named = (
                f"{unknown[0]}, leave out source and target, or start the server with en-de=FOLDER"
            )
        return f"{available}; for {named}"


def pair_of(route: Route) -> str:
    """Return the languages of a route by normal codes, such as `de-pt`; `auto` is unknown."""
    if not route:
        return "unchanged"
    first, last = route[0], route[-1]
    source = first.spec.pair[0] if first.spec.pair else first.source or AUTO
    target = last.spec.pair[1] if last.spec.pair else last.target or AUTO
    return f"{normalise_code(source)}-{normalise_code(target)}"


def _by_preference(codes: Iterable[str]) -> list[str]:
    return sorted(codes, key=lambda code: (code not in PIVOTS, code))
