"""MTranServer's API: `/translate` and `/translate/batch`.

Its `/translate` is also the path of LibreTranslate's; `guard.py` passes a body with `from` and `to`
and without `q` to `SINGLE`.
"""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from outrider.serving.api.fields import Code
from outrider.serving.api.texts import translate_texts

SINGLE = "/translate/single"

router = APIRouter(prefix="/translate", tags=["MTranServer"])


def is_single(body: bytes) -> bool:
    """Whether a body of `/translate` is MTranServer's."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and {"from", "to"} <= values.keys() and "q" not in values


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    source: Annotated[Code, Field(alias="from")]
    """Language of the texts, or `auto`."""
    target: Annotated[Code, Field(alias="to")]
    html: bool = False


class SingleBody(_Body):
    """MTranServer's body of `/translate`."""

    text: str


class BatchBody(_Body):
    """Body of `/translate/batch`."""

    texts: Annotated[list[str], Field(max_length=2_048)]


@router.post(SINGLE.removeprefix("/translate"), response_model=dict[str, Any])
async def translate(request: Request, body: SingleBody) -> JSONResponse:
    """Translate a text; `POST /translate` takes the same body."""
    translation = await translate_texts(
        request, [body.text], body.source, body.target, html=body.html
    )
    return JSONResponse({"result": translation.texts[0]})


@router.post("/batch", response_model=dict[str, Any])
async def translate_batch(request: Request, body: BatchBody) -> JSONResponse:
    """Translate several texts."""
    translation = await translate_texts(
        request, body.texts, body.source, body.target, html=body.html
    )
    return JSONResponse({"results": translation.texts})
