"""A folder of files on a disk or in an object store, with one interface.

A `Path` is a folder on a disk, a URL such as `s3://bucket/folder` one of a store (`remote.py`,
which needs fsspec). Files appear complete or not at all.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar
from urllib.parse import unquote, urlsplit

from outrider.errors import ConfigError, DataError, OutriderError
from outrider.files.reading import Reading, file_sha256, read_json
from outrider.files.writing import locked, replacing, write_json

Place = Path | str
"""A folder on a disk, or the URL of one in a store."""
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""Beginning of a URL; `Path` removes one of two slashes."""
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Store(Protocol):
    """A folder without subfolders."""

    @property
    def place(self) -> Place:
        """Its path or URL."""

    def exists(self) -> bool:
        """Whether it exists; in a store, whether it has files."""

    def make(self) -> None:
        """Create it unless it exists."""

    def names(self) -> list[str]:
        """Sorted names of the files; raise `DataError` if the folder does not exist."""

    def has(self, name: str) -> bool:
        """Whether a file exists."""

    def show(self, name: str) -> str:
        """Return the name of a file in messages."""

    def open(self, name: str) -> AbstractContextManager[Reading]:
        """Open a file to read; raise `DataError` if it is missing or unreadable."""

    def sha256(self, name: str) -> str:
        """Return the checksum of a file."""

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one JSON object; raise `DataError` if it is missing or damaged."""

    def write_json(self, name: str, values: Any) -> None:
        """Write values as JSON, completely or not at all."""

    def replacing(self, name: str) -> AbstractContextManager[TextIO]:
        """Yield a text file to write; it appears at the end, or not after an error."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""

    def remove_unfinished(self) -> None:
        """Remove unfinished files of killed processes."""

    def alone(self, busy: OutriderError) -> AbstractContextManager[None]:
        """Lock the folder while the block runs; raise `busy` if another process holds it."""

    def check_alone(self) -> None:
        """Raise a `ResourceError` if another process took over the lock."""

    def each(self, function: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
        """Call a function that reads files for each item; results are in the same order."""


def as_place(place: Place) -> Place:
    """Return a `Path` for a path or a `file:` URL, and other URLs as text."""
    if isinstance(place, Path) or not (match := re.match(r"([A-Za-z][\w+.-]+)://", place)):
        return Path(place)
    if match[1].lower() in ("file", "local"):
        return Path(unquote(urlsplit(place).path))
    return place.rstrip("/")


def check_on_disk(key: str, path: Place, why: str) -> None:
    """Refuse the URL of a store, also as a `Path`, where a path is needed."""
    if match := _PROTOCOL.match(str(path)):
        raise ConfigError(key, f"got a URL of {match[1]}, but {why}")


def open_store(place: Place) -> Store:
    """Return a folder on a disk or in a store, without accessing it."""
    if isinstance(place, Path):
        return LocalFolder(place)
    from outrider.files.remote import RemoteFolder

    return RemoteFolder(place)


@dataclass(frozen=True)
class LocalFolder:
    """A folder on a disk."""

    place: Path

    def __str__(self) -> str:
        return str(self.place)

    def exists(self) -> bool:
        """Whether it exists."""
        return self.place.exists()

    def make(self) -> None:
        """Create it with its parents."""
        self.place.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Sorted names of the files."""
        if not self.place.is_dir():
            raise DataError(f"{self.place}: is not a folder; name one that exists")
        return sorted(path.name for path in self.place.iterdir() if path.is_file())

    def has(self, name: str) -> bool:
        """Whether a file exists."""
        return (self.place / name).is_file()

    def show(self, name: str) -> str:
        """Return the name of a file in messages."""
        return str(self.place / name)

    @contextmanager
    def open(self, name: str) -> Iterator[Reading]:
        """Open a file to read."""
        with self._explained(name):
            stream = (self.place / name).open("rb", buffering=0)
        with stream, Reading(stream, lambda: self._explained(name)) as reading:
            yield reading

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{self.show(name)}: cannot be read: {reason}") from error

    def sha256(self, name: str) -> str:
        """Return the checksum of a file."""
        return file_sha256(self.place / name)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one JSON object."""
        return read_json(self.place / name, error=DataError)

    def write_json(self, name: str, values: Any) -> None:
        """Write values as JSON."""
        write_json(self.place / name, values)

    def replacing(self, name: str) -> AbstractContextManager[TextIO]:
        """Yield a text file to write."""
        return replacing(self.place / name)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        (self.place / name).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Remove unfinished files of killed processes."""
        for leftover in (*self.place.glob("*.tmp"), *self.place.glob(".*.*")):
            leftover.unlink(missing_ok=True)

    def alone(self, busy: OutriderError) -> AbstractContextManager[None]:
        """Hold the lock file of the folder."""
        return locked(self.place / ".lock", busy)

    def check_alone(self) -> None:
        """Do nothing: a lock on a disk is never taken over."""

    def each(self, function: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
        """Call a function for each item, without threads."""
        return [function(item) for item in items]
