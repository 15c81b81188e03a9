"""Locks between processes; a killed process holds none.

Being the one process at work in a folder of a store, where nothing can be locked.

`.lock` says who is at work and when that was last true; it is renewed while the work goes on. A
second process is refused. A claim is dead when its process is (seen from the same machine), or when
it was not renewed for `STALE` seconds; then it is taken over. Where a store creates a file only if
there is none (S3, Google's and Azure's do), two that begin in one moment cannot both hold it.
Elsewhere, and when a dead claim is taken over, the last to write has it, and looks after `SETTLE`
seconds whether that was itself.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from outrider.errors import DataError, OutriderError, ResourceError
from outrider.files.writing import explained

__all__ = ["LOCK", "check_claim", "claimed", "locked"]


@contextmanager
def locked(path: Path, busy: OutriderError) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; raise `busy` if another process does.

    The file stays: a lock whose file is removed can be held twice.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        with explained(path):
            lock.acquire(timeout=0)
    except Timeout:
        raise busy from None
    try:
        yield
    finally:
        lock.release()


LOCK = ".lock"
BEAT = 30.0
"""Seconds between two renewals."""
STALE = 300.0
"""Seconds without renewal after which a claim is dead; clocks may differ by less."""
SETTLE = 2.0
_HELD: dict[str, str] = {}
"""Folders that this process works in, and the name of its claim."""
_LOST: set[str] = set()
"""Claims that another process took over."""


class Claimable(Protocol):
    """What is asked of a store."""

    place: str
    """Its URL."""

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one object; one that is missing or damaged is a `DataError`."""

    def put(self, name: str, raw: bytes) -> None:
        """Write a file."""

    def create(self, name: str, raw: bytes) -> bool | None:
        """Write a file if there is none: whether it was; None where a store cannot tell."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


@contextmanager
def claimed(store: Claimable, busy: OutriderError) -> Iterator[None]:
    """Hold the claim to a folder while the block runs; raise `busy` if another process does."""
    owner = uuid4().hex
    _take(store, owner, busy)
    _HELD[store.place] = owner
    stop = threading.Event()
    renewal = threading.Thread(target=_renew, args=(store, owner, stop), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        stop.set()
        renewal.join()
        _HELD.pop(store.place, None)
        with suppress(OutriderError):  # it is stale before long
            if _read(store).get("owner") == owner:
                store.remove(LOCK)


def check_claim(store: Claimable) -> None:
    """Raise if another process took over what this one works on."""
    if _HELD.get(store.place) in _LOST:
        raise ResourceError(
            f"{store}: another process took over, for this one was not heard of for "
            f"{STALE:.0f} s; wait for that one"
        )


def _take(store: Claimable, owner: str, busy: OutriderError) -> None:
    found, mine = _read(store), _claim(owner)
    if _is_alive(found):
        raise busy
    created = None if found else store.create(LOCK, mine)
    if not created and _is_alive(_read(store)):  # one that began in the same moment
        raise busy
    if not created:
        store.put(LOCK, mine)
        time.sleep(SETTLE)
        if _read(store).get("owner") != owner:
            raise busy


def _renew(store: Claimable, owner: str, stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        with suppress(OutriderError):  # a network that is down for a while
            if _read(store).get("owner", owner) != owner:
                _LOST.add(owner)
                return
            store.put(LOCK, _claim(owner))


def _claim(owner: str) -> bytes:
    values = {
        "owner": owner,
        "machine": socket.gethostname(),
        "process": os.getpid(),
        "renewed": round(time.time(), 3),
    }
    return json.dumps(values).encode()


def _read(store: Claimable) -> dict[str, Any]:
    try:
        return store.read_json(LOCK)
    except DataError:
        return {}


def _is_alive(claim: dict[str, Any]) -> bool:
    renewed, process = claim.get("renewed"), claim.get("process")
    if not isinstance(renewed, int | float) or time.time() - renewed > STALE:
        return False
    if claim.get("machine") != socket.gethostname() or not isinstance(process, int):
        return True
    if process == os.getpid():  # this one, or one of an earlier life of a container
        return claim.get("owner") in _HELD.values()
    return _runs(process)


def _runs(process: int) -> bool:
    if os.name == "nt":  # os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's
        return True
    return True
