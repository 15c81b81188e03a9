"""Reading of untrusted files.

Only regular files are read (a named pipe would block, a device has no end), with limits of size and
of nesting.
"""

import hashlib
import io
import json
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from outrider.errors import ModelError, OutriderError

JSON_BYTES = 16 << 20
"""Default limit of JSON files; configs have a few kilobytes."""
DEPTH = 64
"""Deepest nesting of lists and objects, so that code can recurse over them."""


def read_json(
    path: Path, *, limit: int = JSON_BYTES, error: type[OutriderError] = ModelError, fix: str = ""
) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Args:
        path: A regular file, or a link to one.
        limit: Largest size in bytes.
        error: Class of the error for an unreadable or damaged file.
        fix: End of the error message.
    """
    return parse_json(read_limited(path, limit=limit, error=error, fix=fix), path, error, fix)


class JsonFolder:
    """A folder whose JSON files are opened once."""

    def __init__(self, path: Path, opened: dict[Path, bytes] | None = None) -> None:
        """Read nothing yet; `opened` are the files that a folder around it has read."""
        self.path = path
        self._opened = {} if opened is None else opened

    @classmethod
    def of(cls, folder: "str | Path | JsonFolder") -> "JsonFolder":
        """Return a folder that may be given by its path."""
        return folder if isinstance(folder, JsonFolder) else cls(Path(folder))

    def inner(self, path: Path) -> "JsonFolder":
        """Return a folder in this one."""
        return JsonFolder(path, self._opened)

    def read(self, name: str, *, limit: int = JSON_BYTES) -> bytes:
        """Return the bytes of a file."""
        path = self.path / name
        if path not in self._opened:
            self._opened[path] = read_limited(path, limit=limit)
        return self._opened[path]

    def json(self, name: str, *, limit: int = JSON_BYTES) -> dict[str, Any]:
        """Return the object in a file; empty if the file does not exist."""
        path = self.path / name
        return parse_json(self.read(name, limit=limit), path) if path.exists() else {}

    def json_list(self, name: str, *, limit: int = JSON_BYTES) -> list[Any]:
        """Return the list in a file."""
        path = self.path / name
        values = _parse(self.read(name, limit=limit), path, ModelError, "")
        if not isinstance(values, list):
            _refuse(path, f"must hold one JSON list, not {_kind(values)}", ModelError, "")
        return values


Location = str | Path | JsonFolder


def parse_json(
    raw: bytes | str, path: Path | str, error: type[OutriderError] = ModelError, fix: str = ""
) -> dict[str, Any]:
    """Parse the text of `path`, which must be one JSON object."""
    values = _parse(raw, path, error, fix)
    if not isinstance(values, dict):
        _refuse(path, f"must hold one JSON object, not {_kind(values)}", error, fix)
    return values


def _parse(raw: bytes | str, path: Path | str, error: type[OutriderError], fix: str) -> Any:
    try:
        values = json.loads(raw if isinstance(raw, str) else raw.decode("utf-8"))
    except RecursionError:
        _refuse(path, f"is nested deeper than {DEPTH} levels", error, fix)
    except UnicodeDecodeError as problem:
        _refuse(path, f"is not UTF-8 text: {problem.reason} at byte {problem.start}", error, fix)
    except ValueError as problem:
        _refuse(path, f"is not JSON: {problem}", error, fix)
    if isinstance(values, dict | list):
        _check_depth(values, path, error, fix)
    return values


def read_limited(
    path: Path, *, limit: int, error: type[OutriderError] = ModelError, fix: str = ""
) -> bytes:
    """Read a regular file of at most `limit` bytes."""
    with open_regular(path, error=error, fix=fix) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        _refuse(path, f"is larger than {limit >> 20} MiB", error, fix)
    return raw


def open_regular(path: Path, *, error: type[OutriderError] = ModelError, fix: str = "") -> BinaryIO:
    """Open a regular file to read; pipes, devices and folders are refused."""
    try:
        # The opened file is checked, since the name can refer to another file later. Opening a
        # pipe without O_NONBLOCK would block.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except FileNotFoundError:
        _refuse(path, "no such file", error, fix)
    except (OSError, ValueError) as problem:  # a name with a NUL byte is a ValueError
        reason = getattr(problem, "strerror", None) or problem
        _refuse(path, f"cannot be read: {reason}", error, fix)
    if not regular:
        os.close(descriptor)
        _refuse(path, "is not a regular file", error, fix)
    return os.fdopen(descriptor, "rb")


class Reading(io.RawIOBase):
    """A stream that computes the checksum of its bytes."""

    def __init__(
        self, stream: BinaryIO, explained: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Read `stream`; `explained` converts its errors."""
        self._stream, self._explained, self._digest = stream, explained, hashlib.sha256()

    def readable(self) -> bool:
        """Whether the stream can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes."""
        view = memoryview(buffer)
        with self._explained():
            piece = self._stream.read(len(view))
        self._digest.update(piece)
        view[: len(piece)] = piece
        return len(piece)

    def sha256(self) -> str:
        """Read the rest; return the checksum of the whole file."""
        while self.read(1 << 20):
            pass
        return self._digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Return the checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_depth(values: Any, path: Path | str, error: type[OutriderError], fix: str) -> None:
    level, depth = [values], 0
    while level:
        depth += 1
        if depth > DEPTH:
            _refuse(path, f"is nested deeper than {DEPTH} levels", error, fix)
        inner = (v.values() if isinstance(v, dict) else v for v in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def _refuse(path: Path | str, what: str, error: type[OutriderError], fix: str) -> NoReturn:
    raise error(f"{path}: {what}" + (f"; {fix}" if fix else ""))
