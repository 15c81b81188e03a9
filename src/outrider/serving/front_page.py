"""The page at `/`: a few files of this package, which need nothing from elsewhere."""

import gzip
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

__all__ = ["router"]

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
