"""Resumable translation of one text file into another, line by line.

`<out>.partial` contains, until the file is finished,

`text`         the translated lines
`state.json`   the number of saved lines, their checksum, and what determines them
`.lock`        held by the writing process
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

TEXT, STATE, LOCK = "text", "state.json", ".lock"
SAVE_EVERY = 1.0
"""Seconds between two saves; a killed process loses at most these."""


def look_at(source: Store, name: str) -> tuple[int, str, str]:
    """Return the number of lines of a file, its checksum, and its fault, or ""."""
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
    """An unfinished output file, opened by `open_unfinished`."""

    def __init__(self, folder: Path, origin: Callable[[], dict[str, Any]]) -> None:
        """Resume the lines in `folder` if their origin is equal to `origin`."""
        self.folder = folder
        self._origin = origin
        self.note = ""
        """Reason why existing lines are not used."""
        self._done = self._read_state()
        if self._done.rows == 0:
            (folder / STATE).unlink(missing_ok=True)
        self._saved, self._time = self._done.rows, time.monotonic()
        self._file = (folder / TEXT).open("r+b" if self._done.rows else "wb")
        self._file.truncate(self._done.size)
        self._file.seek(self._done.size)

    @property
    def rows(self) -> int:
        """Number of translated lines."""
        return self._done.rows

    def write(self, text: str) -> None:
        """Append the translation of the next line."""
        raw = text.encode()
        self._file.write(raw)
        digest = self._done.digest.copy()
        digest.update(raw)
        # A single assignment, so that an interrupt leaves a consistent state.
        self._done = _Done(self._done.rows + 1, self._done.size + len(raw), digest)
        if time.monotonic() - self._time > SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Save all lines durably, with the state to resume from."""
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
        """Flush all lines to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; errors of the final write are ignored."""
        with suppress(OSError):
            self._file.close()

    def _read_state(self) -> _Done:
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
def open_unfinished(
    out: Path,
    origin: Callable[[], dict[str, Any]],
    convert: Callable[[bytes], bytes] | None = None,
) -> Iterator[Unfinished]:
    """Open the unfinished lines of `out` for writing; at the end they replace `out`.

    Args:
        out: The file to write; unchanged until the end.
        origin: Returns everything that determines the lines, as JSON values; called when first
            needed. Existing lines of another origin are not used.
        convert: Makes the file from the lines; None if it consists of them.
    """
    place = out.resolve()
    folder = place.with_name(f"{place.name}.partial")
    busy = DataError(f"{folder}: another process is working there; wait for it")
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
                    if convert is not None:
                        made = folder / f"{TEXT}.tmp"
                        made.write_bytes(convert((folder / TEXT).read_bytes()))
                        made.replace(folder / TEXT)
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
        raise ResourceError(message) from error
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
