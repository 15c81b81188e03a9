"""One text file translated into another, line by line; what was interrupted is continued.

Until all is done, `<out>.partial` holds

`text`         the translations so far
`state.json`   how much of them is certain, and all that they depend on
`.lock`        held by the process that writes
"""

import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from outrider.data.lines import Lines, check_plain_text
from outrider.errors import DataError, ResourceError
from outrider.files import LocalFolder, Store, explained, locked, put, read_json

__all__ = ["Unfinished", "look_at", "open_unfinished"]

TEXT, STATE, LOCK = "text", "state.json", ".lock"
SAVE_EVERY = 1.0
"""Seconds between two saves; a process that is killed loses no more."""


def look_at(source: Store, name: str) -> tuple[int, str, str]:
    """Return the lines of a file, its checksum, and what is wrong with it."""
    rows, sha256 = 0, ""
    try:
        with source.open(name) as raw:
            lines = Lines(io.BufferedReader(raw), source.show(name), check=check_plain_text)
            try:
                rows = sum(1 for _ in lines)
            finally:
                sha256 = raw.sha256()
    except DataError as error:
        return 0, sha256, str(error)
    return rows, sha256, ""


class _Done(NamedTuple):
    rows: int
    size: int
    digest: Any


class Unfinished:
    """The lines of a file that are written; made by `open_unfinished`."""

    def __init__(self, folder: Path, origin: Callable[[], dict[str, Any]]) -> None:
        """Find what is there, if it was made from `origin`."""
        self.folder = folder
        self._origin = origin
        self.note = ""
        """Why lines that were there do not count."""
        self._done = self._find()
        if self._done.rows == 0:
            (folder / STATE).unlink(missing_ok=True)
        self._saved, self._time = self._done.rows, time.monotonic()
        self._file = (folder / TEXT).open("r+b" if self._done.rows else "wb")
        self._file.truncate(self._done.size)
        self._file.seek(self._done.size)

    @property
    def rows(self) -> int:
        """Lines that are written."""
        return self._done.rows

    def write(self, text: str) -> None:
        """Write the translation of the next line."""
        raw = text.encode()
        self._file.write(raw)
        digest = self._done.digest.copy()
        digest.update(raw)
        # One assignment: an interrupt comes before it or after it.
        self._done = _Done(self._done.rows + 1, self._done.size + len(raw), digest)
        if time.monotonic() - self._time > SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Make all lines survive the end of this process."""
        done = self._done
        if done.rows > self._saved:
            self.flush()
            state = {"rows": done.rows, "bytes": done.size, "sha256": done.digest.hexdigest()}
            staging = self.folder / f"{STATE}.tmp"
            with staging.open("w", encoding="utf-8") as file:
                json.dump({**state, "origin": self._origin()}, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            staging.replace(self.folder / STATE)
            self._saved = done.rows
        self._time = time.monotonic()

    def flush(self) -> None:
        """Write all lines to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, whether or not the disk takes the rest."""
        with suppress(OSError):
            self._file.close()

    def _find(self) -> _Done:
        nothing = _Done(0, 0, hashlib.sha256())
        if not (self.folder / STATE).is_file() or not (self.folder / TEXT).is_file():
            return nothing
        try:
            state = read_json(self.folder / STATE, error=DataError)
            rows, size, sha256 = int(state["rows"]), int(state["bytes"]), state["sha256"]
            before, now = dict(state["origin"]), json.loads(json.dumps(self._origin()))
            digest = _digest(self.folder / TEXT, size)
        except (DataError, KeyError, TypeError, ValueError):
            self.note = "it is damaged"
            return nothing
        if changed := [key for key in now if before.get(key) != now[key]]:
            self.note = f"the {changed[0]} changed"
        elif digest.hexdigest() != sha256:
            self.note = "it is damaged"
        else:
            return _Done(rows, size, digest)
        return nothing


@contextmanager
def open_unfinished(out: Path, origin: Callable[[], dict[str, Any]]) -> Iterator[Unfinished]:
    """Yield the lines that are done of `out`, to be written on; at the end they become `out`.

    Args:
        out: The file to write; it is as it was until the end.
        origin: Returns all that the lines depend on, as JSON values; called when it is first
            needed. Lines that were made from something else do not count.
    """
    place = out.resolve()
    folder = place.with_name(f"{place.name}.partial")
    busy = DataError(f"{folder}: another process is at work there; wait for it")
    kept = None
    try:
        with explained(out):
            folder.mkdir(exist_ok=True)
            with locked(folder / LOCK, busy):
                LocalFolder(folder).remove_unfinished()
                work = Unfinished(folder, origin)
                try:
                    yield work
                    work.flush()
                    put(folder / TEXT, place)
                    (folder / STATE).unlink(missing_ok=True)
                except BaseException:
                    with suppress(OSError):
                        work.save()
                    raise
                finally:
                    work.close()
                    kept = (folder / STATE).is_file()
                    if not kept:
                        (folder / TEXT).unlink(missing_ok=True)
    except ResourceError as error:
        message = f"{error}; finished lines are kept in {folder}" if kept else str(error)
        raise ResourceError(message) from None
    except OSError as error:
        if str(error.filename).startswith(str(folder)):
            error.filename, error.filename2 = str(out), None
        raise
    finally:
        if kept is False:
            with suppress(OSError):
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()


def _digest(path: Path, size: int) -> Any:
    """Return the checksum of the beginning of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(min(size, 1 << 20)):
            digest.update(piece)
            size -= len(piece)
    return digest
