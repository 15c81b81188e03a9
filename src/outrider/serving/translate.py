"""LibreTranslate's API: `/translate`, `/languages` and `/frontend/settings`."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from outrider.serving.client import while_there
from outrider.serving.engine import Ask, Engine
from outrider.serving.fields import Code, Options, PriorityName, Seconds, read_priority
from outrider.serving.job import Priority
from outrider.serving.languages import find_model, list_languages

__all__ = ["router"]

router = APIRouter(tags=["LibreTranslate"])


class TranslateBody(BaseModel):
    """What `/translate` is asked; the fields after `api_key` are ours."""

    q: str | list[str]
    """A text, or several."""
    source: Code
    """Its language, or `auto`."""
    target: Code
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=8)] = 0
    """Further translations of each text, by beam search."""
    api_key: Annotated[str, Field(max_length=200)] | None = None
    options: Options = Options()
    split: bool = True
    """Whether to translate sentence by sentence."""
    priority: PriorityName | None = None
    deadline: Seconds | None = None
    """Seconds that the request has."""


@router.post("/translate")
async def translate(request: Request, body: TranslateBody) -> dict[str, Any]:
    """Translate a text, or several."""
    engine: Engine = request.app.state.engine
    spec = find_model(engine.shelf.specs, body.source, body.target)
    several = isinstance(body.q, list)
    texts = body.q if isinstance(body.q, list) else [body.q]
    ask = Ask(
        model=spec.name,
        texts=texts,
        source=body.source if spec.reads else None,
        target=None if spec.pair else body.target,
        options=body.options.given,
        split=body.split,
        priority=read_priority(body.priority, Priority.normal),
        seconds=body.deadline,
    )
    results = await while_there(request, engine.answer(ask))
    found = [best.text for best, *_ in results]
    return {"translatedText": found if several else found[0]}


@router.get("/languages")
async def languages(request: Request) -> list[dict[str, Any]]:
    """List the languages that can be read, each with those it can be translated to."""
    return list_languages(request.app.state.engine.shelf.specs.values())
