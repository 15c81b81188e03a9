"""OpenAI's `/v1/models`: what there is to ask."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from outrider.serving.engine import Engine
from outrider.serving.refusal import UnknownError
from outrider.serving.spec import Spec

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["OpenAI"])

Name = Annotated[str, Path(max_length=200)]


@router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    """List the models."""
    engine: Engine = request.app.state.engine
    found = [_about(spec, engine) for spec in engine.shelf.specs.values()]
    return {"object": "list", "data": found}


@router.get("/models/{name}")
async def model(request: Request, name: Name) -> dict[str, Any]:
    """Describe one model."""
    engine: Engine = request.app.state.engine
    spec = engine.shelf.specs.get(name)
    if spec is None:
        raise UnknownError(f"no model is called {name[:100]!r}")
    return _about(spec, engine)


def _about(spec: Spec, engine: Engine) -> dict[str, Any]:
    """Say what OpenAI says of a model, and what it does and whether it is loaded."""
    return {
        "id": spec.name,
        "object": "model",
        "created": spec.changed,
        "owned_by": "outrider",
        "task": "generate" if spec.writes else "translate",
        "languages": list(spec.pair) if spec.pair else list(spec.languages),
        "loaded": spec.name in engine.shelf.loaded,
    }
