"""LibreTranslate's API: `/translate`, `/detect`, `/languages` and `/frontend/settings`.

Language detection needs the extra `language`.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from outrider.errors import ConfigError
from outrider.serving.api.fields import Code, Options, PriorityName, Seconds, read_priority
from outrider.serving.api.html import read_page
from outrider.serving.api.responses import while_connected
from outrider.serving.engine import Engine
from outrider.serving.keys import admit
from outrider.serving.registry import Spec
from outrider.serving.request import TextRequest, TooLargeError, UnknownError
from outrider.text.language import LanguageGuess
from outrider.text.normalise import normalise, well_formed

router = APIRouter(tags=["LibreTranslate"])

DETECTED = 3
"""Languages in the answer of `/detect`."""
DETECT_CHARACTERS = 2_000
"""Characters used for language detection."""

_language_guess = cache(LanguageGuess)


class DetectBody(BaseModel):
    """Body of `/detect`."""

    model_config = ConfigDict(extra="forbid")

    q: str
    api_key: Annotated[str, Field(max_length=200)] | None = None


@router.post("/detect")
async def detect(request: Request, body: DetectBody) -> list[dict[str, Any]]:
    """Return the most likely languages of a text, with probabilities in percent."""
    admit(request, body.api_key)
    engine: Engine = request.app.state.engine
    if len(body.q) > engine.limits.characters:
        raise TooLargeError(f"send at most {engine.limits.characters:,} characters at once")
    ranked = await engine.run_in_worker(_rank_languages, body.q)
    return [{"language": code, "confidence": percent} for code, percent in ranked[:DETECTED]]


def _rank_languages(text: str) -> list[tuple[str, float]]:
    """Return languages with their probabilities in percent, the most likely first."""
    text = normalise(well_formed(text[:DETECT_CHARACTERS]))
    if not text:
        return []
    ranked = _language_guess().rank(text)
    return [(code, round(100 * probability, 1)) for code, probability in ranked]


AUTO = "auto"
"""A source language to detect, the only target language, or an unknown language."""

_TABLE = """
ar Arabic, az Azerbaijani, bg Bulgarian, bn Bengali, ca Catalan, cs Czech, da Danish, de German,
el Greek, en English, eo Esperanto, es Spanish, et Estonian, eu Basque, fa Persian, fi Finnish,
fr French, ga Irish, gl Galician, he Hebrew, hi Hindi, hr Croatian, hu Hungarian, hy Armenian,
id Indonesian, is Icelandic, it Italian, ja Japanese, ka Georgian, kk Kazakh, ko Korean, lt
Lithuanian, lv Latvian, mk Macedonian, ms Malay, nb Norwegian Bokmål, nl Dutch, pl Polish, pt
Portuguese, ro Romanian, ru Russian, sk Slovak, sl Slovenian, sq Albanian, sr Serbian, sv
Swedish, sw Swahili, ta Tamil, th Thai, tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu, vi
Vietnamese, zh Chinese
"""
_NAMES = dict(entry.split(maxsplit=1) for entry in " ".join(_TABLE.split()).split(", "))


def list_languages(specs: Iterable[Spec]) -> list[dict[str, object]]:
    """List the source languages with their target languages.

    A model of unknown languages translates from `auto` to `auto`.
    """
    targets: dict[str, set[str]] = {}
    names: dict[str, str] = dict(_NAMES)
    names[AUTO] = "Unknown"
    for spec in specs:
        names |= spec.language_names
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
    """Return the first model for a language pair."""
    if target == AUTO:
        return _find_only(specs, source)
    for spec in specs.values():
        if spec.pair == (source, target):
            return spec
    for spec in specs.values():
        if target in spec.languages and (source in spec.languages or not spec.needs_source):
            return spec
    raise _unknown_pair(specs, source, target)


def _find_only(specs: Mapping[str, Spec], source: str) -> Spec:
    """Return the only model for a source language, or for unknown languages."""
    models = [spec for spec in specs.values() if not spec.generates]
    if source != AUTO:
        models = [spec for spec in models if spec.pair and spec.pair[0] == source]
    elif any(spec.unknown for spec in models):  # models of known languages are named by them
        models = [spec for spec in models if spec.unknown]
    if len(models) == 1 and not models[0].languages:
        return models[0]
    raise ConfigError("target", f"name the target language; {_describe_pairs(specs)}")


def _unknown_pair(specs: Mapping[str, Spec], source: str, target: str) -> UnknownError:
    message = f"cannot translate from {source[:20]!r} to {target[:20]!r}"
    return UnknownError(f"{message}; {_describe_pairs(specs)}")


def _describe_pairs(specs: Mapping[str, Spec]) -> str:
    """List the language pairs of the models for an error message."""
    pairs = [f"{spec.pair[0]} to {spec.pair[1]}" for spec in specs.values() if spec.pair]
    many = [f"any of {len(spec.languages)} languages" for spec in specs.values() if spec.languages]
    unknown = [spec.name for spec in specs.values() if spec.unknown]
    available = f"available: {', '.join([*pairs, *many][:20]) or 'no model of known languages'}"
    if not unknown:
        return available
    named = f"{unknown[0]}, start the server with en-de=FOLDER"
    if len(unknown) == 1:
        named = f"{unknown[0]}, leave out source and target, or start the server with en-de=FOLDER"
    return f"{available}; for {named}"


BEAMS = 4
"""Fewest beams for alternatives."""


class TranslateBody(BaseModel):
    """Body of `/translate`; fields after `api_key` are extensions of LibreTranslate's API."""

    model_config = ConfigDict(extra="forbid")

    q: str | list[str]
    """One or more texts."""
    source: Code = AUTO
    """Language of the texts, or `auto`."""
    target: Code = AUTO
    """Language to translate to; `auto` if only one is possible."""
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=8)] = 0
    """Number of alternative translations of each text, by beam search."""
    api_key: Annotated[str, Field(max_length=200)] | None = None
    options: Options = Options()
    split: bool | None = None
    """Whether to translate sentence by sentence; null for the model's default."""
    priority: PriorityName | None = None
    deadline: Seconds | None = None
    """Time limit in seconds."""


@router.post("/translate", response_model=dict[str, Any])
async def translate(request: Request, body: TranslateBody) -> JSONResponse:
    """Translate one or more texts; of HTML the text between tags."""
    priority = read_priority(body.priority, admit(request, body.api_key))
    engine: Engine = request.app.state.engine
    texts = body.q if isinstance(body.q, list) else [body.q]
    if sum(map(len, texts)) > engine.limits.characters:
        raise TooLargeError(f"send at most {engine.limits.characters:,} characters at once")
    source, detected = body.source, None
    if source == AUTO and body.target != AUTO:
        source, detected = await _detect_source(engine, texts, body.target)
    spec = find_model(engine.registry.specs, source, body.target)
    if source == AUTO and spec.pair:
        detected = {"language": spec.pair[0], "confidence": 100.0}
    pages = None
    if body.format == "html":
        pages = await engine.run_in_worker(lambda: [read_page(text) for text in texts])
    text_request = TextRequest(
        model=spec.name,
        texts=texts if pages is None else [text for page in pages for text in page.texts],
        source=source if spec.needs_source else None,
        target=None if spec.pair or spec.unknown else body.target,
        options=_options(body),
        split=body.split,
        priority=priority,
        seconds=body.deadline,
    )
    request.scope["facts"] |= {"model": spec.name, "characters": text_request.characters}
    results = await while_connected(request, engine.answer(text_request))
    translations = []
    for rank in range(body.alternatives + 1):
        ranked = [hypotheses[min(rank, len(hypotheses) - 1)].text for hypotheses in results]
        if pages is not None:
            rest = iter(ranked)
            ranked = [page.write([next(rest) for _ in page.places]) for page in pages]
        translations.append(ranked)
    # A Response is not validated again by FastAPI.
    return JSONResponse(_answer(translations, detected, body))


@router.get("/languages")
async def languages(request: Request) -> list[dict[str, Any]]:
    """List the source languages with their target languages."""
    return list_languages(request.app.state.engine.registry.specs.values())


@router.get("/frontend/settings")
async def settings(request: Request) -> dict[str, Any]:
    """Return the settings that LibreTranslate's web page and similar clients read first."""
    engine: Engine = request.app.state.engine
    listed = list_languages(engine.registry.specs.values())
    needs_key = request.app.state.keyring is not None
    first: dict[str, Any] = listed[0] if listed else {"code": "", "name": "", "targets": [""]}
    target = first["targets"][0] if first["targets"] else ""
    names = {language["code"]: language["name"] for language in listed}
    return {
        "apiKeys": needs_key,
        "keyRequired": needs_key,
        "charLimit": engine.limits.characters,
        "frontendTimeout": 500,
        "suggestions": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": first["code"], "name": first["name"]},
            "target": {"code": target, "name": names.get(target, target)},
        },
    }


async def _detect_source(
    engine: Engine, texts: list[str], target: str
) -> tuple[str, dict[str, Any]]:
    """Return the most likely language of texts, among those that translate to `target`."""
    specs = engine.registry.specs.values()
    known = {spec.pair[0] for spec in specs if spec.pair and spec.pair[1] == target}
    known |= {code for spec in specs if target in spec.languages for code in spec.languages}
    if not known:
        raise _unknown_pair(engine.registry.specs, AUTO, target)
    if len(known) == 1:
        return (only := known.pop()), {"language": only, "confidence": 100.0}
    for code, percent in await engine.run_in_worker(_rank_languages, " ".join(texts)):
        if code in known:
            return code, {"language": code, "confidence": percent}
    raise ConfigError("source", "cannot detect the language of this text; name it")


def _options(body: TranslateBody) -> dict[str, Any]:
    """Return the decode options; alternatives use beam search unless candidates are sampled."""
    options = body.options.given
    if body.alternatives:
        wanted = body.alternatives + 1
        key = "candidates" if "candidates" in options else "beams"
        options.setdefault(key, max(BEAMS, wanted))
        options["n_best"] = wanted
    return options


def _answer(
    translations: list[list[str]], detected: dict[str, Any] | None, body: TranslateBody
) -> dict[str, Any]:
    """Return the response; its values are lists if `q` is a list."""
    several = isinstance(body.q, list)
    best, *others = translations
    answer: dict[str, Any] = {"translatedText": best if several else best[0]}
    if body.alternatives:
        by_text = [list(texts) for texts in zip(*others, strict=True)]
        answer["alternatives"] = by_text if several else by_text[0]
    if detected is not None:
        answer["detectedLanguage"] = [detected] * len(best) if several else detected
    return answer
