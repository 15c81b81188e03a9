"""A folder of files on a disk, or in a store: S3, Google's, Azure's, whatever fsspec opens.

A `Path` is a folder on a disk, a text such as `s3://bucket/folder` one of a store (`remote.py`,
which alone needs fsspec). Both have one face, so that a job need not know where it works: a file
appears whole or not at all, and whatever is wrong is one sentence that names it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar
from urllib.parse import unquote, urlsplit

from outrider.errors import ConfigError, DataError, OutriderError
from outrider.files.lock import locked
from outrider.files.reading import Reading, file_sha256, read_json
from outrider.files.writing import replacing, write_json

__all__ = [
    "LocalFolder",
    "Place",
    "Store",
    "as_place",
    "check_on_disk",
    "open_store",
]

Place = Path | str
"""A folder on a disk, or the URL of one in a store."""
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""How a URL begins; of a URL that was made a `Path`, one of two slashes is left."""
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Store(Protocol):
    """A folder without folders in it."""

    @property
    def place(self) -> Place:
        """Where it is, as it is opened again."""

    def exists(self) -> bool:
        """Whether it is there; in a store, whether it holds anything."""

    def make(self) -> None:
        """Have it, if it is not there."""

    def names(self) -> list[str]:
        """Names of its files, in order; a `DataError` where there is no such folder."""

    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    def show(self, name: str) -> str:
        """Return how messages name a file."""

    def open(self, name: str) -> AbstractContextManager[Reading]:
        """Open a file to read; one that is missing or may not be read is a `DataError`."""

    def sha256(self, name: str) -> str:
        """Return the checksum of a file."""

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one JSON object; what is wrong with it is a `DataError`."""

    def write_json(self, name: str, values: Any) -> None:
        """Write values as JSON, whole or not at all."""

    def replacing(self, name: str) -> AbstractContextManager[TextIO]:
        """Yield a text file to write; it takes its place at the end, or vanishes."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def remove_unfinished(self) -> None:
        """Remove what a killed process was writing."""

    def alone(self, busy: OutriderError) -> AbstractContextManager[None]:
        """Be the one process that works here; raise `busy` if another is."""

    def check_alone(self) -> None:
        """Raise a `ResourceError` if another process took over since."""

    def each(self, function: Callable[[_In], _Out], some: Iterable[_In]) -> list[_Out]:
        """Call a function that asks for files, for each of some; answers are in their order."""


def as_place(place: Place) -> Place:
    """Tell a folder on a disk, given by its path or as `file:`, from the URL of a store."""
    if isinstance(place, Path) or not (match := re.match(r"([A-Za-z][\w+.-]+)://", place)):
        return Path(place)
    if match[1].lower() in ("file", "local"):
        return Path(unquote(urlsplit(place).path))
    return place.rstrip("/")


def check_on_disk(key: str, path: Place, why: str) -> None:
    """Refuse the URL of a store, also one that was made a `Path`, where a path is needed."""
    if match := _PROTOCOL.match(str(path)):
        raise ConfigError(key, f"got a URL of {match[1]}, but {why}")


def open_store(place: Place) -> Store:
    """Return a folder, on a disk or in a store; nothing is asked of it yet."""
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
        """Whether it is there."""
        return self.place.exists()

    def make(self) -> None:
        """Have it, with the folders above it."""
        self.place.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Names of its files, in order."""
        if not self.place.is_dir():
            raise DataError(f"{self.place}: is no folder; name one that is there")
        return sorted(path.name for path in self.place.iterdir() if path.is_file())

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.place / name).is_file()

    def show(self, name: str) -> str:
        """Return how messages name a file."""
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
            raise DataError(f"{self.show(name)}: cannot be read: {reason}") from None

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
        """Remove a file, if it is there."""
        (self.place / name).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Remove what a killed process was writing."""
        for leftover in (*self.place.glob("*.tmp"), *self.place.glob(".*.*")):
            leftover.unlink(missing_ok=True)

    def alone(self, busy: OutriderError) -> AbstractContextManager[None]:
        """Be the one process that works here."""
        return locked(self.place / ".lock", busy)

    def check_alone(self) -> None:
        """A lock on a disk is never taken over."""

    def each(self, function: Callable[[_In], _Out], some: Iterable[_In]) -> list[_Out]:
        """One after another: a disk is fastest so."""
        return [function(one) for one in some]
