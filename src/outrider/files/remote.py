"""A folder of an object store (S3, Google Cloud, Azure, ...), opened by fsspec.

Files are written to a local disk and then uploaded: objects become visible when complete. Listings
are not cached, because other machines write too. Credentials and endpoints come from the
environment variables and files of fsspec and the store's package.

A folder is locked by a claim: the file `.lock` with the owner's process and a time, which the owner
renews. Other processes are refused while it is alive. It is dead if its process has ended (as far
as the same machine can see) or if it was not renewed for `STALE` seconds; then it is taken over. If
a store supports creation without overwriting (S3, Google Cloud and Azure do), only one of two
concurrent processes gets the claim. Otherwise, and for takeovers, the last writer gets it; each
writer checks after `SETTLE` seconds.
"""

import io
import json
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO, TypeVar
from uuid import uuid4

from outrider.errors import ConfigError, DataError, MissingExtraError, OutriderError, ResourceError
from outrider.files.reading import JSON_BYTES, Reading, parse_json
from outrider.files.writing import replacing

BLOCK_BYTES = 8 << 20
"""Bytes of one read request."""
THREADS = 16
"""Concurrent requests, which hide the latency of the store."""
LOCK = ".lock"
BEAT = 30.0
"""Seconds between two renewals."""
STALE = 300.0
"""Seconds without renewal after which a claim is dead; clocks must differ by less."""
SETTLE = 2.0
BUGS = (AssertionError, AttributeError, NameError, TypeError)
"""Exceptions of bugs; a store's package raises many others for problems of the store."""
_HELD: dict[str, str] = {}
"""Folders that this process has claimed, and the ids of the claims."""
_LOST: set[str] = set()
"""Claims that another process took over."""
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class RemoteFolder:
    """A folder of a store, by its URL; see `Store`."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> tuple[type["RemoteFolder"], tuple[str]]:
        return RemoteFolder, (self.place,)

    def __str__(self) -> str:
        return re.sub(r"//[^/@]*@", "//", self.place)  # no passwords in messages

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system, and the folder's path in it."""
        protocol = self.place.partition("://")[0]
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            raise MissingExtraError("fsspec", "stores", str(self)) from error
        try:
            system, path = url_to_fs(self.place)
        except ImportError as error:
            package = getattr(error.__cause__ or error, "name", None) or "the package of its store"
            raise ConfigError(
                str(self), f"needs {package}, which is not installed: pip install {package}"
            ) from error
        except ValueError as error:
            message = f"cannot be opened: {error}"
            if "protocol" in str(error).lower():
                message = f"no store is known as {protocol}://; use s3://, gs://, az:// or a path"
            raise ConfigError(str(self), message) from error
        return system, path.rstrip("/")

    @property
    def _system(self) -> Any:
        """The file system, without cached listings."""
        system = self._opened[0]
        system.invalidate_cache()
        return system

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    def exists(self) -> bool:
        """Whether it holds anything."""
        return bool(self._list(missing_ok=True))

    def make(self) -> None:
        """Create the folder where a store has folders; the bucket must exist."""
        system, path = self._opened
        if "/" not in path:  # buckets are not created
            self._list(missing_ok=False)
            return
        with (
            self._explained(str(self), "written", DataError),
            suppress(FileExistsError, NotImplementedError),
        ):
            system.mkdir(path, create_parents=False)  # parents would be buckets

    def names(self) -> list[str]:
        """Sorted names of the files."""
        return self._list(missing_ok=False)

    def _list(self, *, missing_ok: bool) -> list[str]:
        start = self._path("").lstrip("/")
        with self._explained(str(self), "read"):
            try:
                entries = self._system.ls(self._opened[1], detail=True)
            except FileNotFoundError:
                if not missing_ok:
                    raise
                entries = []
        files = (entry["name"].lstrip("/") for entry in entries if entry["type"] == "file")
        names = (name.removeprefix(start) for name in files if name.startswith(start))
        return sorted(name for name in names if name and "/" not in name)

    def has(self, name: str) -> bool:
        """Whether a file exists."""
        with self._explained(self.show(name), "read"):
            return bool(self._system.isfile(self._path(name)))

    def show(self, name: str) -> str:
        """Return the name of a file in messages."""
        return f"{self}/{name}"

    @contextmanager
    def open(self, name: str) -> Iterator[Reading]:
        """Open a file to read."""
        at = self.show(name)
        with self._explained(at, "read"):
            stream = self._system.open(self._path(name), "rb", block_size=BLOCK_BYTES)
        with stream, Reading(stream, lambda: self._explained(at, "read")) as reading:
            yield reading

    def sha256(self, name: str) -> str:
        """Return the checksum of a file."""
        with self.open(name) as reading:
            return reading.sha256()

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one JSON object."""
        with self.open(name) as reading, io.BufferedReader(reading) as file:
            raw = file.read(JSON_BYTES + 1)
        if len(raw) > JSON_BYTES:
            raise DataError(f"{self.show(name)}: is larger than {JSON_BYTES >> 20} MiB")
        return parse_json(raw, self.show(name), DataError)

    def write_json(self, name: str, values: Any) -> None:
        """Write values as JSON."""
        self.put(name, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())

    @contextmanager
    def replacing(self, name: str) -> Iterator[TextIO]:
        """Yield a text file to write; it is uploaded at the end."""
        with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
            staged = Path(folder, "staged")
            with replacing(staged) as file:
                yield file
            with self._explained(self.show(name), "written"):
                self._system.put_file(str(staged), self._path(name))
                arrived, size = self._system.size(self._path(name)), staged.stat().st_size
            if arrived not in (size, None):
                raise ResourceError(
                    f"{self.show(name)}: {arrived} of {size} bytes are uploaded; run again"
                )

    def put(self, name: str, raw: bytes) -> None:
        """Write a small file."""
        with self._explained(self.show(name), "written"):
            self._system.pipe_file(self._path(name), raw)

    def create(self, name: str, raw: bytes) -> bool | None:
        """Write a file unless it exists: whether it is written; None if unsupported."""
        try:
            with self._explained(self.show(name), "written"):
                try:
                    self._system.pipe_file(self._path(name), raw, mode="create")
                except FileExistsError:
                    return False
                except (NotImplementedError, TypeError, ValueError):
                    return None
        except ResourceError:
            return None  # some stores refuse the mode; `put` shows other errors
        return True

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with self._explained(self.show(name), "removed"), suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    def remove_unfinished(self) -> None:
        """Do nothing: unfinished uploads are not visible."""

    @contextmanager
    def alone(self, busy: OutriderError) -> Iterator[None]:
        """Hold the claim to the folder."""
        owner = uuid4().hex
        self._take(owner, busy)
        _HELD[self.place] = owner
        stop = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(owner, stop), daemon=True)
        renewal.start()
        try:
            yield
        finally:
            stop.set()
            renewal.join()
            _HELD.pop(self.place, None)
            with suppress(OutriderError):  # an unremoved claim becomes stale
                if self._claim().get("owner") == owner:
                    self.remove(LOCK)

    def check_alone(self) -> None:
        """Raise if another process took over the claim."""
        if _HELD.get(self.place) in _LOST:
            raise ResourceError(
                f"{self}: another process took over, because this one did not renew its claim for "
                f"{STALE:.0f} s; wait for that process"
            )

    def _take(self, owner: str, busy: OutriderError) -> None:
        current, own = self._claim(), _new_claim(owner)
        if _is_alive(current):
            raise busy
        created = None if current else self.create(LOCK, own)
        if not created and _is_alive(self._claim()):  # a concurrent process
            raise busy
        if not created:
            self.put(LOCK, own)
            time.sleep(SETTLE)
            if self._claim().get("owner") != owner:
                raise busy

    def _renew(self, owner: str, stop: threading.Event) -> None:
        while not stop.wait(BEAT):
            with suppress(OutriderError):  # the network may be down for a while
                if self._claim().get("owner", owner) != owner:
                    _LOST.add(owner)
                    return
                self.put(LOCK, _new_claim(owner))

    def _claim(self) -> dict[str, Any]:
        try:
            return self.read_json(LOCK)
        except DataError:
            return {}

    def each(self, function: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
        """Call a function for each item, in threads."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(function, items))

    @contextmanager
    def _explained(
        self, at: str, done: str, missing: type[OutriderError] | None = None
    ) -> Iterator[None]:
        """Convert exceptions of a store's package; `done` is the participle of the action."""
        kind = DataError if done == "read" else ResourceError
        try:
            yield
        except (OutriderError, *BUGS):
            raise
        except FileNotFoundError as error:
            why = f"does not exist ({_reason(error)}); check the name of the bucket and the folder"
            raise (missing or kind)(f"{at}: {why}") from error
        except PermissionError as error:
            why = f"may not be {done} ({_reason(error)}); check the credentials and their rights"
            raise kind(f"{at}: {why}") from error
        except Exception as error:
            why = "check the network, the address and the credentials of the store, and run again"
            raise ResourceError(f"{at}: cannot be {done} ({_reason(error)}); {why}") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _new_claim(owner: str) -> bytes:
    values = {
        "owner": owner,
        "machine": socket.gethostname(),
        "process": os.getpid(),
        "renewed": round(time.time(), 3),
    }
    return json.dumps(values).encode()


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
