"""The HTTP app: the APIs, the pages `/` and `/race`, and the probes `/health` and `/ready`."""

import gzip
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from outrider import __version__
from outrider.errors import OutriderError
from outrider.serving import log
from outrider.serving.api import (
    deepl,
    deepl_glossaries,
    documents,
    google,
    immersive,
    kiss,
    libretranslate,
    mtranserver,
    openai,
    watch,
)
from outrider.serving.api.errors import error_schemas
from outrider.serving.api.responses import add_error_handlers
from outrider.serving.docs_page import write_docs
from outrider.serving.documents import DocumentStore
from outrider.serving.engine import Engine
from outrider.serving.glossaries import GlossaryStore
from outrider.serving.guard import Guard
from outrider.serving.keys import Keyring
from outrider.serving.translation import TranslationService
from outrider.text.glossary import Glossary

router = APIRouter(tags=["operation"])

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    # A browser revalidates each file and receives 304 if it has not changed.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; object-src 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


class _File(NamedTuple):
    """A file of the pages."""

    data: bytes
    compressed: bytes
    digest: str


@cache
def _files() -> dict[str, _File]:
    loaded = {}
    for file in files("outrider.serving").joinpath("page").iterdir():
        if PurePath(file.name).suffix in TYPES:
            data = file.read_bytes()
            digest = hashlib.sha256(data).hexdigest()[:16]
            loaded[file.name] = _File(data, gzip.compress(data, mtime=0), digest)
    return loaded


def _file_response(request: Request, name: str) -> Response:
    if name not in _files():
        raise HTTPException(404, "the file does not exist")
    file = _files()[name]
    headers = HEADERS | {"ETag": f'W/"{file.digest}"'}
    if file.digest in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    data = file.data
    if "gzip" in request.headers.get("accept-encoding", ""):
        data, headers = file.compressed, headers | {"Content-Encoding": "gzip"}
    return Response(data, media_type=TYPES[PurePath(name).suffix], headers=headers)


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """Return the translator."""
    return _file_response(request, "index.html")


@router.get("/race", include_in_schema=False)
async def race(request: Request) -> Response:
    """Return the drafting race."""
    return _file_response(request, "race.html")


@router.get("/page/{name}", include_in_schema=False)
async def page_file(request: Request, name: str) -> Response:
    """Return a file of the pages."""
    return _file_response(request, name)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Return the page of all routes."""
    text = write_docs(request.app.openapi())
    return Response(text, media_type=TYPES[".html"], headers=HEADERS)


@router.get("/health")
async def health() -> dict[str, str]:
    """Liveness probe."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "Not ready."}})
async def ready(request: Request, response: Response) -> dict[str, Any]:
    """Readiness probe; names a fault of the key file."""
    engine: Engine = request.app.state.engine
    keyring: Keyring | None = request.app.state.keyring
    is_ready = engine.ready and (keyring is None or not keyring.expired)
    if not is_ready:
        response.status_code = 503
    answer = {"ready": is_ready, "models": sorted(engine.registry.loaded)}
    if keyring is not None and (reason := keyring.fault) is not None:
        answer["reason"] = reason
    return answer


# Routes are matched in this order, so the most frequent are first.
ROUTERS = (
    *(libretranslate.router, openai.router, documents.libretranslate, documents.deepl),
    *(deepl_glossaries.router, deepl.router, google.router, immersive.router),
    *(kiss.router, mtranserver.router, watch.router, router, log.router),
)


def build_app(
    engine: Engine,
    *,
    keyring: Keyring | None = None,
    load: bool = True,
    guard: bool = False,
    terms: Mapping[tuple[str, str], Glossary] | None = None,
    glossaries: Path | None = None,
    origins: Sequence[str] = (),
) -> FastAPI:
    """Build the app of an engine, which starts and stops with the app.

    Args:
        engine: Processes the requests.
        keyring: Valid API keys; None to require none.
        load: Whether to load the models at the start.
        guard: Whether sentences whose translation has a fault are decoded another way.
        terms: Glossaries of requests without one, by source and target language.
        glossaries: The file of the glossaries that clients create; None to keep them in memory.
        origins: Allowed origins of web pages, such as `https://example.org`; `*` for all.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await engine.start(load=load)
        except OutriderError as error:
            cause = error.__cause__
            app.state.fault = cause if isinstance(cause, OutriderError) else error
            raise
        try:
            yield
        finally:
            await app.state.documents.close()
            await engine.close()
            app.state.glossaries.close()
            if keyring is not None:
                keyring.close()

    app = FastAPI(
        title="Outrider",
        version=__version__,
        description="Translation and language models, with the APIs of other services.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from other hosts
        redoc_url=None,
    )
    app_metrics = log.Metrics(engine)
    app.state.engine, app.state.keyring, app.state.metrics = engine, keyring, app_metrics
    app.state.service, app.state.fault = TranslationService(engine, guard=guard, terms=terms), None
    app.state.glossaries = GlossaryStore(glossaries)
    app.state.documents = DocumentStore(engine)
    add_error_handlers(app)
    for router in ROUTERS:
        own = router in (libretranslate.router, documents.libretranslate)
        path = "/translate" if own else f"{router.prefix}/"
        app.include_router(router, responses=error_schemas(path))

    app.add_middleware(
        Guard,
        limits=engine.limits,
        keyring=keyring,
        overload=engine.overload,
        record=app_metrics.record,
    )
    if origins:  # outermost: preflight requests have no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
        )
    return app
