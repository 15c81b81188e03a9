"""A client that may leave: whatever is done for it then stops."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

__all__ = ["ClientGone", "while_there"]

T = TypeVar("T")


class ClientGone(Exception):  # noqa: N818  (nobody made a mistake)
    """The client has hung up."""


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do something for as long as the client waits for it."""
    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientGone
    finally:
        gone.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
