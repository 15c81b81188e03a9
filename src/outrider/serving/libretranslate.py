"""LibreTranslate's API: `/translate`, `/languages` and `/frontend/settings`.

LibreTranslate's `/detect`: which language a text is in (extra `language`).

Languages of the served models: who translates what, and what they are called.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from outrider.errors import ConfigError
from outrider.runtime import Result
from outrider.serving.answers import TooLargeError, UnknownError
from outrider.serving.engine import Ask, Engine
from outrider.serving.fields import Code, Options, PriorityName, Seconds, read_priority
from outrider.serving.html import Page, read_page
from outrider.serving.keys import admit
from outrider.serving.log import while_there
from outrider.serving.registry import Spec
from outrider.text.language import LanguageGuess
from outrider.text.normalise import normalise, well_formed

__all__ = ["AUTO", "cannot_translate", "find_model", "guess", "list_languages", "router"]

router = APIRouter(tags=["LibreTranslate"])

MOST = 3
"""Languages named."""
ENOUGH = 2_000
"""Characters that are looked at."""

guesser = cache(LanguageGuess)


class DetectBody(BaseModel):
    """What `/detect` is asked."""

    model_config = ConfigDict(extra="forbid")

    q: str
    api_key: Annotated[str, Field(max_length=200)] | None = None


@router.post("/detect")
async def detect(request: Request, body: DetectBody) -> list[dict[str, Any]]:
    """Name the languages that a text is most likely in, with their chances in percent."""
    admit(request, body.api_key)
    engine: Engine = request.app.state.engine
    if len(body.q) > engine.limits.characters:
        raise TooLargeError(f"send at most {engine.limits.characters:,} characters at once")
    found = await engine.beside(guess, body.q)
    return [{"language": code, "confidence": chance} for code, chance in found[:MOST]]


def guess(text: str) -> list[tuple[str, float]]:
    """Return languages with their chances in percent, the likeliest first."""
    seen = normalise(well_formed(text[:ENOUGH]))
    if not seen:
        return []
    return [(code, round(100 * chance, 1)) for code, chance in guesser().rank(seen)]


AUTO = "auto"
"""A source to be detected, the only target there is, or a language that is unknown."""

_NAMES = dict(
    line.split(maxsplit=1)
    for line in """
ar Arabic
az Azerbaijani
bg Bulgarian
bn Bengali
ca Catalan
cs Czech
da Danish
de German
el Greek
en English
eo Esperanto
es Spanish
et Estonian
eu Basque
fa Persian
fi Finnish
fr French
ga Irish
gl Galician
he Hebrew
hi Hindi
hr Croatian
hu Hungarian
hy Armenian
id Indonesian
is Icelandic
it Italian
ja Japanese
ka Georgian
kk Kazakh
ko Korean
lt Lithuanian
lv Latvian
mk Macedonian
ms Malay
nb Norwegian Bokmål
nl Dutch
pl Polish
pt Portuguese
ro Romanian
ru Russian
sk Slovak
sl Slovenian
sq Albanian
sr Serbian
sv Swedish
sw Swahili
ta Tamil
th Thai
tl Tagalog
tr Turkish
uk Ukrainian
ur Urdu
vi Vietnamese
zh Chinese
""".strip().splitlines()
)


def list_languages(specs: Iterable[Spec]) -> list[dict[str, object]]:
    """List the languages that can be read, each with those it can be translated to.

    A model whose languages are unknown reads and writes `auto`.
    """
    targets: dict[str, set[str]] = {}
    names: dict[str, str] = dict(_NAMES)
    names[AUTO] = "Unknown"
    for spec in specs:
        names |= spec.names
        if spec.unknown:
            targets[AUTO] = {AUTO}
        if spec.pair is not None:
            targets.setdefault(spec.pair[0], set()).add(spec.pair[1])
        for source in spec.languages:
            targets.setdefault(source, set()).update({*spec.languages} - {source})
    return [
        {"code": source, "name": names.get(source, source), "targets": sorted(targets[source])}
        for source in sorted(targets)
    ]


def find_model(specs: Mapping[str, Spec], source: str, target: str) -> Spec:
    """Return the first model that translates from one language to another."""
    if target == AUTO:
        return _find_only(specs, source)
    for spec in specs.values():
        if spec.pair == (source, target):
            return spec
    for spec in specs.values():
        if target in spec.languages and (source in spec.languages or not spec.reads):
            return spec
    raise cannot_translate(specs, source, target)


def _find_only(specs: Mapping[str, Spec], source: str) -> Spec:
    """Return the only model that needs no target and reads a language, which may be unknown."""
    found = [spec for spec in specs.values() if not spec.writes]
    if source != AUTO:
        found = [spec for spec in found if spec.pair and spec.pair[0] == source]
    elif any(spec.unknown for spec in found):  # others are asked for by their languages
        found = [spec for spec in found if spec.unknown]
    if len(found) == 1 and not found[0].languages:
        return found[0]
    raise ConfigError("target", f"name the language to write; {_say_known(specs)}")


def cannot_translate(specs: Mapping[str, Spec], source: str, target: str) -> UnknownError:
    """Return the refusal of languages that no model translates between."""
    message = f"cannot translate from {source[:20]!r} to {target[:20]!r}"
    return UnknownError(f"{message}; {_say_known(specs)}")


def _say_known(specs: Mapping[str, Spec]) -> str:
    pairs = [f"{spec.pair[0]} to {spec.pair[1]}" for spec in specs.values() if spec.pair]
    many = [f"any of {len(spec.languages)} languages" for spec in specs.values() if spec.languages]
    unknown = [spec.name for spec in specs.values() if spec.unknown]
    there = f"there is {', '.join([*pairs, *many][:20]) or 'no model of known languages'}"
    if not unknown:
        return there
    named = f"{unknown[0]}, start the server with en-de=FOLDER"
    if len(unknown) == 1:
        named = f"{unknown[0]}, leave out source and target, or start the server with en-de=FOLDER"
    return f"{there}; for {named}"


BEAMS = 4
"""Beams where alternatives are asked for, at least."""


class TranslateBody(BaseModel):
    """What `/translate` is asked; the fields after `api_key` are ours."""

    model_config = ConfigDict(extra="forbid")

    q: str | list[str]
    """A text, or several."""
    source: Code = AUTO
    """Its language, or `auto`."""
    target: Code = AUTO
    """The language to write, or `auto` where there is only one, known or not."""
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=8)] = 0
    """Further translations of each text, by beam search."""
    api_key: Annotated[str, Field(max_length=200)] | None = None
    options: Options = Options()
    split: bool | None = None
    """Whether to translate sentence by sentence; by default as the model asks."""
    priority: PriorityName | None = None
    deadline: Seconds | None = None
    """Seconds that the request has."""


@router.post("/translate", response_model=dict[str, Any])
async def translate(request: Request, body: TranslateBody) -> JSONResponse:
    """Translate a text, or several; of HTML the texts between the tags."""
    most = read_priority(body.priority, admit(request, body.api_key))
    engine: Engine = request.app.state.engine
    texts = body.q if isinstance(body.q, list) else [body.q]
    if sum(map(len, texts)) > engine.limits.characters:
        raise TooLargeError(f"send at most {engine.limits.characters:,} characters at once")
    source, detected = body.source, None
    if source == AUTO and body.target != AUTO:
        source, detected = await _detect(engine, texts, body.target)
    spec = find_model(engine.shelf.specs, source, body.target)
    if source == AUTO and spec.pair:
        detected = {"language": spec.pair[0], "confidence": 100.0}
    pages = await engine.beside(_read_pages, texts) if body.format == "html" else None
    ask = Ask(
        model=spec.name,
        texts=texts if pages is None else [text for page in pages for text in page.texts],
        source=source if spec.reads else None,
        target=None if spec.pair or spec.unknown else body.target,
        options=_options(body),
        split=body.split,
        priority=most,
        seconds=body.deadline,
    )
    request.scope["facts"] |= {"model": spec.name, "characters": sum(map(len, ask.texts))}
    results = await while_there(request, engine.answer(ask))
    found = [
        _texts(results, alternative) if pages is None else _pages(pages, results, alternative)
        for alternative in range(body.alternatives + 1)
    ]
    answer = _answer(found, several=isinstance(body.q, list), detected=detected, body=body)
    return JSONResponse(answer)  # a plain object needs no check on its way out


@router.get("/languages")
async def languages(request: Request) -> list[dict[str, Any]]:
    """List the languages that can be read, each with those it can be translated to."""
    return list_languages(request.app.state.engine.shelf.specs.values())


@router.get("/frontend/settings")
async def settings(request: Request) -> dict[str, Any]:
    """Say what LibreTranslate's page and its like want to know first."""
    engine: Engine = request.app.state.engine
    listed = list_languages(engine.shelf.specs.values())
    keys = request.app.state.keyring is not None
    first: dict[str, Any] = listed[0] if listed else {"code": "", "name": "", "targets": [""]}
    target = first["targets"][0] if first["targets"] else ""
    named = {one["code"]: one["name"] for one in listed}
    return {
        "apiKeys": keys,
        "keyRequired": keys,
        "charLimit": engine.limits.characters,
        "frontendTimeout": 500,
        "suggestions": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": first["code"], "name": first["name"]},
            "target": {"code": target, "name": named.get(target, target)},
        },
    }


async def _detect(engine: Engine, texts: list[str], target: str) -> tuple[str, dict[str, Any]]:
    """Say which language that somebody can translate to `target` texts are in."""
    specs = engine.shelf.specs.values()
    known = {spec.pair[0] for spec in specs if spec.pair and spec.pair[1] == target}
    known |= {code for spec in specs if target in spec.languages for code in spec.languages}
    if not known:
        raise cannot_translate(engine.shelf.specs, AUTO, target)
    if len(known) == 1:
        return (only := known.pop()), {"language": only, "confidence": 100.0}
    ranked = [one for one in await engine.beside(guess, " ".join(texts)) if one[0] in known]
    if not ranked:
        raise ConfigError("source", "cannot tell the language of this text; name it")
    return ranked[0][0], {"language": ranked[0][0], "confidence": ranked[0][1]}


def _options(body: TranslateBody) -> dict[str, Any]:
    """Return how to decode; alternatives come from beam search, unless texts are drawn."""
    options = body.options.given
    if body.alternatives:
        wanted = body.alternatives + 1
        drawn = "candidates" in options
        options.setdefault("candidates" if drawn else "beams", max(BEAMS, wanted))
        options["n_best"] = wanted
    return options


def _read_pages(texts: list[str]) -> list[Page]:
    return [read_page(text) for text in texts]


def _texts(results: list[list[Result]], alternative: int) -> list[str]:
    return [found[min(alternative, len(found) - 1)].text for found in results]


def _pages(pages: list[Page], results: list[list[Result]], alternative: int) -> list[str]:
    said = iter(_texts(results, alternative))
    return [page.write([next(said) for _ in page.places]) for page in pages]


def _answer(
    found: list[list[str]],
    *,
    several: bool,
    detected: dict[str, Any] | None,
    body: TranslateBody,
) -> dict[str, Any]:
    best, *others = found
    answer: dict[str, Any] = {"translatedText": best if several else best[0]}
    if body.alternatives:
        by_text = [list(texts) for texts in zip(*others, strict=True)]
        answer["alternatives"] = by_text if several else by_text[0]
    if detected is not None:
        answer["detectedLanguage"] = [detected] * len(best) if several else detected
    return answer
