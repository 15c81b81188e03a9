"""`/health` and `/ready`, for whoever watches over the process."""

from typing import Any

from fastapi import APIRouter, Request, Response

from outrider.serving.engine import Engine
from outrider.serving.keys import Keyring

__all__ = ["router"]

router = APIRouter(tags=["operation"])


@router.get("/health")
async def health() -> dict[str, str]:
    """Say that the process is alive."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "Not yet, or no longer."}})
async def ready(request: Request, response: Response) -> dict[str, Any]:
    """Say whether requests are welcome, and what is wrong with the file of keys."""
    engine: Engine = request.app.state.engine
    keyring: Keyring | None = request.app.state.keyring
    welcome = engine.ready and (keyring is None or not keyring.expired)
    if not welcome:
        response.status_code = 503
    answer = {"ready": welcome, "models": sorted(engine.shelf.loaded)}
    if keyring is not None and (reason := keyring.fault) is not None:
        answer["reason"] = reason
    return answer
