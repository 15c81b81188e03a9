"""The file of API keys, their rates and their use: a SQLite database for all servers of a machine.

It holds the SHA-256 of each key. A key has 256 random bits, so one round is sufficient. Changes are
committed before they are answered, so they survive a killed process. A file of JSON, as earlier
versions wrote it, is replaced by a database with the same keys; a copy of it stays.
"""

import os
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.errors import ConfigError
from outrider.files import read_json, write_bytes, write_json

BUSY = 0.25
"""Longest wait for another process in seconds."""
IMPORTED = ".imported"
"""End of the name of the copy of an imported file."""
VERSION = 1
_SCHEMA = f"""
CREATE TABLE keys (
    name TEXT PRIMARY KEY, sha256 TEXT NOT NULL UNIQUE, rate REAL, priority TEXT NOT NULL
);
CREATE TABLE budgets (sha256 TEXT PRIMARY KEY, requests REAL NOT NULL, at REAL NOT NULL);
CREATE TABLE usage (
    name TEXT NOT NULL, month TEXT NOT NULL, characters INTEGER NOT NULL,
    PRIMARY KEY (name, month)
);
PRAGMA user_version = {VERSION};
"""
_MAKE = "make one with outrider key FILE NAME"


class KeyFileError(ConfigError):
    """An invalid key file."""

    def __init__(self, message: str) -> None:
        super().__init__("--keys", message)


class Key(BaseModel):
    """A key as stored in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Name of the owner, for the log."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    rate: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    """Requests per minute; null for no limit."""
    priority: Annotated[str, Field(pattern="^(low|normal|high)$")] = "normal"
    """Highest priority of its requests."""


class _JsonFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    keys: list[Key]


def open_keys(path: Path) -> sqlite3.Connection:
    """Open a key file; a file of JSON is imported first."""
    check_regular(path)
    try:
        return _connect(path)
    except sqlite3.Error as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise KeyFileError(f"{path}: {error}; {_fix(error)}") from error
    _import_json(path)
    try:
        return _connect(path)
    except sqlite3.Error as error:
        raise KeyFileError(f"{path}: {error}; {_fix(error)}") from error


def check_regular(path: Path) -> None:
    """Refuse a path that is no regular file."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError as error:
        raise KeyFileError(f"{path}: no such file; {_MAKE}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KeyFileError(f"{path}: cannot be read: {reason}") from error
    if not regular:
        raise KeyFileError(f"{path}: is not a regular file; {_MAKE}")


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY, isolation_level=None, check_same_thread=False
    )
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            raise KeyFileError(f"{path}: is no key file of this version; {_MAKE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _fix(error: sqlite3.Error) -> str:
    name = error.sqlite_errorname
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return "the server writes rates and usage beside it; use a folder that may be written"
    return "try again" if name.startswith("SQLITE_BUSY") else _MAKE


def read_keys(connection: sqlite3.Connection, path: Path) -> list[Key]:
    """Read the keys of an open file."""
    try:
        rows = connection.execute("SELECT name, sha256, rate, priority FROM keys ORDER BY name")
        return [Key(name=a, sha256=b, rate=c, priority=d) for a, b, c, d in rows]
    except sqlite3.Error as error:
        raise KeyFileError(f"{path}: {error}; {_MAKE}") from error
    except ValidationError as error:
        raise KeyFileError(f"{path}: {_first(error)}") from error


def create_keys(path: Path, keys: Sequence[Key] = ()) -> None:
    """Write a key file, which replaces the file at `path`."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        _insert(connection, keys)
        connection.commit()
        data = connection.serialize()
    for end in ("-wal", "-shm"):  # of a removed file; SQLite would apply it to the new one
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
    write_bytes(path, data)
    path.chmod(0o600)


def _import_json(path: Path) -> None:
    from filelock import FileLock

    with FileLock(path.with_name(f".{path.name}.lock"), timeout=10):
        with path.open("rb") as file:
            if file.read(6) == b"SQLite":  # another process has imported it
                return
        values = read_json(path, error=KeyFileError, fix=_MAKE)
        try:
            keys = _JsonFile.model_validate(values).keys
        except ValidationError as error:
            raise KeyFileError(f"{path}: {_first(error)}") from error
        copy = path.with_name(f"{path.name}{IMPORTED}")
        write_json(copy, values)
        copy.chmod(0o600)
        create_keys(path, keys)


def _insert(connection: sqlite3.Connection, keys: Sequence[Key]) -> None:
    rows = [(key.name, key.sha256, key.rate, key.priority) for key in keys]
    connection.executemany("INSERT INTO keys VALUES (?, ?, ?, ?)", rows)


def insert_key(path: Path, key: Key) -> None:
    """Add a key, and make the file if it does not exist."""
    if not os.path.lexists(path):
        create_keys(path)
    with closing(open_keys(path)) as connection:
        try:
            _insert(connection, [key])
        except sqlite3.IntegrityError as error:
            message = f"{path} has a key of {key.name!r}; remove it first, with --remove"
            raise ConfigError("NAME", message) from error


def delete_key(path: Path, name: str) -> None:
    """Remove a key; its use stays on record."""
    with closing(open_keys(path)) as connection:
        if not connection.execute("DELETE FROM keys WHERE name = ?", (name,)).rowcount:
            known = ", ".join(key.name for key in read_keys(connection, path))
            raise ConfigError("NAME", f"{path} has no key of {name!r}; known keys: {known}")


def take_request(connection: sqlite3.Connection, key: Key, now: float) -> float:
    """Take a request from the budget of a key; return the seconds until there is one, or 0."""
    assert key.rate is not None
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = connection.execute(
            "SELECT requests, at FROM budgets WHERE sha256 = ?", (key.sha256,)
        ).fetchone()
        left, then = found or (key.rate, now)
        left = min(max(1.0, key.rate), left + max(0.0, now - then) * key.rate / 60)
        taken = left >= 1
        connection.execute(
            "INSERT OR REPLACE INTO budgets VALUES (?, ?, ?)", (key.sha256, left - taken, now)
        )
    except BaseException:
        connection.rollback()
        raise
    connection.commit()
    return 0.0 if taken else (1 - left) * 60 / key.rate


def add_usage(connection: sqlite3.Connection, name: str, month: str, characters: int) -> None:
    """Add characters to the use of a key in a month such as `2026-11`."""
    connection.execute(
        "INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT (name, month) "
        "DO UPDATE SET characters = characters + excluded.characters",
        (name, month, characters),
    )


def read_usage(connection: sqlite3.Connection, name: str, month: str) -> int:
    """Return the characters that a key has translated in a month."""
    found = connection.execute(
        "SELECT characters FROM usage WHERE name = ? AND month = ?", (name, month)
    ).fetchone()
    return 0 if found is None else int(found[0])


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
