"""The HTTP app: an engine behind routes, one file a family of them.

The page at `/`: a few files of this package, which need nothing from elsewhere.

`/health` and `/ready`, for whoever watches over the process.
"""

import gzip
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Scope

from outrider import __version__
from outrider.errors import OutriderError
from outrider.serving import libretranslate, metrics, openai, watch
from outrider.serving.answers import add_error_answers, errors_of
from outrider.serving.engine import Engine
from outrider.serving.guard import Guard
from outrider.serving.keys import Keyring
from outrider.serving.log import log_request

__all__ = ["build_app", "router"]

router = APIRouter(include_in_schema=False)

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    # A browser asks each time whether a file has changed, and is sent nothing if not.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; object-src 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


class _File(NamedTuple):
    """A file of the page, as it is and packed, and a mark of what is in it."""

    data: bytes
    packed: bytes
    mark: str


@cache
def _files() -> dict[str, _File]:
    found = {
        one.name: one.read_bytes()
        for one in files("outrider.serving").joinpath("page").iterdir()
        if PurePath(one.name).suffix in TYPES
    }
    return {
        name: _File(data, gzip.compress(data, mtime=0), hashlib.sha256(data).hexdigest()[:16])
        for name, data in found.items()
    }


def _answer(request: Request, name: str) -> Response:
    if name not in _files():
        raise HTTPException(404, "there is no such file")
    file = _files()[name]
    headers = HEADERS | {"ETag": f'W/"{file.mark}"'}
    if file.mark in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    data = file.data
    if "gzip" in request.headers.get("accept-encoding", ""):
        data, headers = file.packed, headers | {"Content-Encoding": "gzip"}
    return Response(data, media_type=TYPES[PurePath(name).suffix], headers=headers)


@router.get("/")
async def page(request: Request) -> Response:
    """Return the page."""
    return _answer(request, "index.html")


@router.get("/page/{name}")
async def part(request: Request, name: str) -> Response:
    """Return a part of the page."""
    return _answer(request, name)


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


# A request is held against one route after the other: what is asked most comes first.
ROUTERS = (libretranslate.router, openai.router, watch.router, router, metrics.router)
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
