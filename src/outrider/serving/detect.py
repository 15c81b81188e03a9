"""LibreTranslate's `/detect`: which language a text is in (extra `language`)."""

from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from outrider.serving.engine import Engine
from outrider.serving.keys import admit
from outrider.serving.refusal import TooLargeError
from outrider.text.join import well_formed
from outrider.text.language import LanguageGuess
from outrider.text.normalise import normalise

__all__ = ["guess", "router"]

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
