"""The custom API of the browser extension KISS Translator: `/kiss`."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from outrider.errors import ConfigError
from outrider.languages import AUTO
from outrider.serving.api.fields import Code
from outrider.serving.api.texts import as_google, translate_texts

router = APIRouter(prefix="/kiss", tags=["KISS Translator"])


class KissBody(BaseModel):
    """Body of `/kiss`: `texts` since version 2 of the extension, else `text`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    text: str | None = None
    texts: Annotated[list[str], Field(max_length=2_048)] | None = None
    source: Annotated[Code, Field(alias="from")] = AUTO
    target: Annotated[Code, Field(alias="to")]


@router.post("", response_model=dict[str, Any])
async def translate(request: Request, body: KissBody) -> JSONResponse:
    """Translate one or more texts."""
    texts = body.texts
    if texts is None:
        if body.text is None:
            raise ConfigError("texts", "is missing; give a list of texts, or text")
        texts = [body.text]
    translation = await translate_texts(request, texts, body.source, body.target)
    source = body.source
    if source == AUTO and translation.detected:
        source = as_google(translation.detected)
    answers = [{"text": text, "src": source} for text in translation.texts]
    if body.texts is not None:
        return JSONResponse({"translations": answers})
    # Version 1 reads the source language from `from`.
    return JSONResponse(answers[0] | {"from": source, "to": body.target})
