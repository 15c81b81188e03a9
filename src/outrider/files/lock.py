"""Locks between processes: lock files on a disk, claims in object stores.

A claim is the file `.lock` with the owner's process and a time, which the owner renews. Other
processes are refused while it is alive. It is dead if its process has ended (as far as the same
machine can see) or if it was not renewed for `STALE` seconds; then it is taken over. If a store
supports creation without overwriting (S3, Google Cloud and Azure do), only one of two concurrent
processes gets the claim. Otherwise, and for takeovers, the last writer gets it; each writer checks
after `SETTLE` seconds.
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


@contextmanager
def locked(path: Path, busy: OutriderError) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; raise `busy` if another process holds it.

    The file stays, because a removed file could be locked twice.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        with explained(path):
            lock.acquire(timeout=0)
    except Timeout as error:
        raise busy from error
    try:
        yield
    finally:
        lock.release()


LOCK = ".lock"
BEAT = 30.0
"""Seconds between two renewals."""
STALE = 300.0
"""Seconds without renewal after which a claim is dead; clocks must differ by less."""
SETTLE = 2.0
_HELD: dict[str, str] = {}
"""Folders that this process has claimed, and the ids of the claims."""
_LOST: set[str] = set()
"""Claims that another process took over."""


class Claimable(Protocol):
    """The methods of a store that claims need."""

    place: str
    """Its URL."""

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one object; raise `DataError` if it is missing or damaged."""

    def put(self, name: str, raw: bytes) -> None:
        """Write a file."""

    def create(self, name: str, raw: bytes) -> bool | None:
        """Write a file unless it exists: whether it is written; None if unsupported."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""


@contextmanager
def claimed(store: Claimable, busy: OutriderError) -> Iterator[None]:
    """Hold the claim to a folder while the block runs; raise `busy` if another process holds it."""
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
        with suppress(OutriderError):  # an unremoved claim becomes stale
            if _read(store).get("owner") == owner:
                store.remove(LOCK)


def check_claim(store: Claimable) -> None:
    """Raise if another process took over the claim of this one."""
    if _HELD.get(store.place) in _LOST:
        raise ResourceError(
            f"{store}: another process took over, because this one did not renew its claim for "
            f"{STALE:.0f} s; wait for that process"
        )


def _take(store: Claimable, owner: str, busy: OutriderError) -> None:
    current, own = _read(store), _claim(owner)
    if _is_alive(current):
        raise busy
    created = None if current else store.create(LOCK, own)
    if not created and _is_alive(_read(store)):  # a concurrent process
        raise busy
    if not created:
        store.put(LOCK, own)
        time.sleep(SETTLE)
        if _read(store).get("owner") != owner:
            raise busy


def _renew(store: Claimable, owner: str, stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        with suppress(OutriderError):  # the network may be down for a while
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
    if process == os.getpid():  # this process, or an earlier one of a restarted container
        return claim.get("owner") in _HELD.values()
    return _runs(process)


def _runs(process: int) -> bool:
    if os.name == "nt":  # os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user
        return True
    return True
