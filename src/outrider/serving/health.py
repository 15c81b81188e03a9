"""`/health` and `/ready`, for whoever watches over the process."""

from typing import Any

from fastapi import APIRouter, Request, Response

from outrider.serving.engine import Engine

__all__ = ["router"]

router = APIRouter(tags=["operation"])


@router.get("/health")
async def health() -> dict[str, str]:
    """Say that the process is alive."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "Not yet, or no longer."}})
async def ready(request: Request, response: Response) -> dict[str, Any]:
    """Say whether requests are welcome."""
    engine: Engine = request.app.state.engine
    if not engine.ready:
        response.status_code = 503
    return {"ready": engine.ready, "models": sorted(engine.shelf.loaded)}
