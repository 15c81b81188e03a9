"""The custom API of the browser extension Immersive Translate: `/imme`.

Its placeholders, such as `<b0></b0>` and `{0}`, are kept, as those of every plain text.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from outrider.languages import AUTO
from outrider.serving.api.fields import Code
from outrider.serving.api.texts import as_google, translate_texts

router = APIRouter(prefix="/imme", tags=["Immersive Translate"])


class ImmersiveBody(BaseModel):
    """Body of `/imme`; other fields are ignored."""

    source_lang: Code = AUTO
    target_lang: Code
    text_list: Annotated[list[str], Field(max_length=2_048)]


@router.post("", response_model=dict[str, Any])
async def translate(request: Request, body: ImmersiveBody) -> JSONResponse:
    """Translate the paragraphs of a page."""
    translation = await translate_texts(request, body.text_list, body.source_lang, body.target_lang)
    source = body.source_lang
    if source == AUTO and translation.detected:
        source = as_google(translation.detected)
    answers = [{"detected_source_lang": source, "text": text} for text in translation.texts]
    return JSONResponse({"translations": answers})
