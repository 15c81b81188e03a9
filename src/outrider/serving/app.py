"""The HTTP app: an engine behind routes, one file a family of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from outrider import __version__
from outrider.errors import OutriderError
from outrider.serving import health, translate
from outrider.serving.answers import add_error_answers
from outrider.serving.engine import Engine
from outrider.serving.guard import Guard

__all__ = ["build_app"]

ROUTERS = (health.router, translate.router)


def build_app(engine: Engine, *, load: bool = True) -> FastAPI:
    """Put routes before an engine, which starts and stops with the app.

    Args:
        engine: Who answers.
        load: Whether the models are loaded before the first request.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await engine.start(load=load)
        except OutriderError as error:
            app.state.fault = error.__cause__ or error
            raise
        try:
            yield
        finally:
            await engine.close()

    app = FastAPI(
        title="Outrider",
        version=__version__,
        description="Translation and language models, as LibreTranslate and OpenAI serve them.",
        lifespan=lifespan,
        docs_url=None,  # these pages fetch scripts from elsewhere
        redoc_url=None,
    )
    app.state.engine, app.state.fault = engine, None
    add_error_answers(app)
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(Guard, limits=engine.limits)
    return app
