"""Google's API: version 2 of Cloud Translation, below `/language/translate/v2`."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from outrider.languages import AUTO, language_name
from outrider.serving.api.fields import Code
from outrider.serving.api.texts import as_google, translate_texts
from outrider.serving.keys import admit
from outrider.serving.languages import Detected
from outrider.serving.request import RefusalError, UnknownError
from outrider.serving.translation import TranslationService

router = APIRouter(prefix="/language/translate/v2", tags=["Google"])

Texts = Annotated[list[str], Field(min_length=1, max_length=2_048)]


class Translate(BaseModel):
    """Fields of a translation; other fields, such as `prettyPrint`, are ignored."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    q: str | Texts
    target: Code
    source: Code | Literal[""] | None = None
    """Detected if it is left out."""
    format: Literal["html", "text"] | None = None
    """By default `html`, as Google's."""
    model: str | None = None
    """No effect."""


class TranslateQuery(Translate):
    """Fields of a translation in a query."""

    q: Texts


@router.get("", response_model=dict[str, Any])
async def translate_by_get(
    request: Request, query: Annotated[TranslateQuery, Query()]
) -> JSONResponse:
    """Translate the texts of a query."""
    return await _translate(request, query)


@router.post("", response_model=dict[str, Any])
async def translate(request: Request, body: Translate) -> JSONResponse:
    """Translate one or more texts."""
    return await _translate(request, body)


async def _translate(request: Request, given: Translate) -> JSONResponse:
    texts = given.q if isinstance(given.q, list) else [given.q]
    try:
        translation = await translate_texts(
            request, texts, given.source, given.target, html=given.format != "text"
        )
    except UnknownError as error:
        raise RefusalError(f"Invalid Value: {error}") from error
    found: dict[str, str] = {}
    if not given.source and translation.detected:
        found = {"detectedSourceLanguage": as_google(translation.detected)}
    answers = [{"translatedText": text, **found} for text in translation.texts]
    return JSONResponse({"data": {"translations": answers}})


class Detect(BaseModel):
    """Fields of a detection."""

    q: str | Texts


class DetectQuery(BaseModel):
    """Fields of a detection in a query."""

    q: Texts


@router.get("/detect")
async def detect_by_get(request: Request, query: Annotated[DetectQuery, Query()]) -> dict[str, Any]:
    """Detect the languages of the texts of a query."""
    return await _detect(request, query.q)


@router.post("/detect")
async def detect(request: Request, body: Detect) -> dict[str, Any]:
    """Detect the language of each text; `und` if there is none."""
    return await _detect(request, body.q if isinstance(body.q, list) else [body.q])


async def _detect(request: Request, texts: list[str]) -> dict[str, Any]:
    admit(request)
    service: TranslationService = request.app.state.service
    found = []
    for text in texts:
        best = next(iter(await service.detect(text)), Detected("und", 0.0))
        confidence = best.confidence / 100
        one = {"language": as_google(best.code), "confidence": confidence, "isReliable": False}
        found.append([one])
    return {"data": {"detections": found}}


@router.get("/languages")
async def languages(
    request: Request, target: Annotated[str | None, Query(max_length=20)] = None
) -> dict[str, Any]:
    """List all languages; with `target` also their names, which are English."""
    admit(request)
    service: TranslationService = request.app.state.service
    known = [one for one in service.languages if one.code != AUTO]
    names = {code: language_name(code) for one in known for code in one.targets}
    names |= {one.code: one.name for one in known}
    listed = [
        {"language": as_google(code)} | ({"name": names[code]} if target else {})
        for code in sorted(names)
    ]
    return {"data": {"languages": listed}}


class Languages(BaseModel):
    """Body of `/languages`."""

    target: Annotated[str, Field(max_length=20)] | None = None


@router.post("/languages")
async def languages_by_post(request: Request, body: Languages) -> dict[str, Any]:
    """List all languages."""
    return await languages(request, body.target)
