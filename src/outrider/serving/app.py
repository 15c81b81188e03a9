"""The HTTP app: an engine behind routes, one file a family of them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Scope

from outrider import __version__
from outrider.errors import OutriderError
from outrider.serving import (
    chat,
    completions,
    detect,
    front_page,
    health,
    metrics,
    models,
    translate,
    watch,
)
from outrider.serving.answers import add_error_answers, errors_of
from outrider.serving.engine import Engine
from outrider.serving.guard import Guard
from outrider.serving.keys import Keyring
from outrider.serving.log import log_request

__all__ = ["build_app"]

# A request is held against one route after the other: what is asked most comes first.
ROUTERS = tuple(
    one.router
    for one in (translate, completions, chat, watch, detect, models, front_page, health, metrics)
)
PUBLIC: tuple[str, ...] = ("/", "/page/")
"""Paths beside those of `guard.OPEN` that need no key."""


def build_app(
    engine: Engine,
    *,
    keyring: Keyring | None = None,
    load: bool = True,
    origins: Sequence[str] = (),
) -> FastAPI:
    """Put routes before an engine, which starts and stops with the app.

    Args:
        engine: Who answers.
        keyring: Who may ask; None for everybody.
        load: Whether the models are loaded before the first request.
        origins: Web pages of other hosts that may ask, such as `https://example.org`; `*` for all.
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
    figures = metrics.Metrics(engine)
    app.state.engine, app.state.keyring, app.state.metrics = engine, keyring, figures
    app.state.fault = None
    add_error_answers(app)
    for router in ROUTERS:
        app.include_router(router, responses=errors_of(router.prefix))

    def note(scope: Scope, status: int, seconds: float) -> None:
        log_request(scope, status, seconds)
        figures.note(scope, status, seconds)

    app.add_middleware(
        Guard, limits=engine.limits, keyring=keyring, public=PUBLIC, full=engine.full, note=note
    )
    if origins:  # outermost: a browser asks for leave without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
        )
    return app
