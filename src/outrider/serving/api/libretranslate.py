"""LibreTranslate's API: `/translate`, `/detect`, `/languages`, `/suggest` and
`/frontend/settings`.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from outrider.documents import FORMATS
from outrider.languages import AUTO
from outrider.serving.api.fields import Code, Options, PriorityName, Seconds, read_priority
from outrider.serving.api.responses import while_connected
from outrider.serving.keys import admit
from outrider.serving.languages import Detected
from outrider.serving.request import ForbiddenError
from outrider.serving.translation import Translation, TranslationService

router = APIRouter(tags=["LibreTranslate"])

DETECTED = 3
"""Languages in the answer of `/detect`."""


class DetectBody(BaseModel):
    """Body of `/detect`."""

    model_config = ConfigDict(extra="forbid")

    q: str
    api_key: Annotated[str, Field(max_length=200)] | None = None


@router.post("/detect")
async def detect(request: Request, body: DetectBody) -> list[dict[str, Any]]:
    """Return the most likely served languages of a text, with probabilities in percent."""
    admit(request, body.api_key)
    service: TranslationService = request.app.state.service
    return [_detected(one) for one in (await service.detect(body.q))[:DETECTED]]


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
    """Translate one or more texts; of HTML the texts of its blocks."""
    priority = read_priority(body.priority, admit(request, body.api_key))
    service: TranslationService = request.app.state.service
    translation = await while_connected(
        request,
        service.translate(
            body.q if isinstance(body.q, list) else [body.q],
            body.source,
            body.target,
            html=body.format == "html",
            alternatives=body.alternatives,
            options=body.options.given,
            split=body.split,
            priority=priority,
            seconds=body.deadline,
            facts=request.scope["facts"],
        ),
    )
    # A Response is not validated again by FastAPI.
    return JSONResponse(_answer(translation, body))


@router.get("/languages")
async def languages(request: Request) -> list[dict[str, Any]]:
    """List the source languages with their target languages.

    `pivots` names the language between, for targets that take two models.
    """
    service: TranslationService = request.app.state.service
    return [
        {"code": one.code, "name": one.name, "targets": one.targets}
        | ({"pivots": one.pivots} if one.pivots else {})
        for one in service.languages
    ]


@router.post("/suggest")
async def suggest() -> None:
    """Refuse a suggestion of a better translation."""
    raise ForbiddenError("this server stores no texts and takes no suggestions")


@router.get("/frontend/settings")
async def settings(request: Request) -> dict[str, Any]:
    """Return the settings that LibreTranslate's web page and similar clients read first."""
    service: TranslationService = request.app.state.service
    needs_key = request.app.state.keyring is not None
    first = next(iter(service.languages), None)
    source, targets = ("", ()) if first is None else (first.code, first.targets)
    return {
        "apiKeys": needs_key,
        "keyRequired": needs_key,
        "charLimit": service.engine.limits.characters,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "suggestions": False,
        "supportedFilesFormat": sorted(FORMATS),
        "language": {
            "source": {"code": source, "name": service.name(source)},
            "target": {"code": (target := next(iter(targets), "")), "name": service.name(target)},
        },
    }


def _detected(detected: Detected) -> dict[str, Any]:
    return {"language": detected.code, "confidence": detected.confidence}


def _answer(translation: Translation, body: TranslateBody) -> dict[str, Any]:
    """Return the response; its values are lists if `q` is a list."""
    several = isinstance(body.q, list)
    best = [ranked[0] for ranked in translation.texts]
    answer: dict[str, Any] = {"translatedText": best if several else best[0]}
    if body.alternatives:
        others = [ranked[1:] for ranked in translation.texts]
        answer["alternatives"] = others if several else others[0]
    if translation.detected is not None:
        detected = _detected(translation.detected)
        answer["detectedLanguage"] = [detected] * len(best) if several else detected
    if translation.faults:  # an extension
        answer["faults"] = translation.faults
    return answer
