"""Glossaries of clients, in a SQLite file: each belongs to the key that created it.

A glossary has a dictionary for each language pair.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from outrider.errors import ConfigError
from outrider.languages import normalise_code
from outrider.serving.request import RefusalError, UnknownError
from outrider.text.glossary import Entry, Glossary

VERSION = 1
MOST = 1_000
"""Most glossaries of a key."""
MOST_BYTES = 10 << 20
"""Most bytes of the entries of a glossary."""
_SCHEMA = f"""
CREATE TABLE glossaries (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, created REAL NOT NULL
);
CREATE TABLE dictionaries (
    id TEXT NOT NULL REFERENCES glossaries ON DELETE CASCADE,
    source TEXT NOT NULL, target TEXT NOT NULL, entries TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (id, source, target)
);
PRAGMA user_version = {VERSION};
"""


class Dictionary(NamedTuple):
    """The entries of a glossary for a language pair."""

    source: str
    target: str
    entries: tuple[Entry, ...]


class Summary(NamedTuple):
    """A glossary without its entries."""

    id: str
    name: str
    created: float
    """Seconds since 1970."""
    pairs: tuple[tuple[str, str, int], ...]
    """Source, target and number of entries of each dictionary."""


class GlossaryStore:
    """The glossaries of all keys. For one thread at a time."""

    def __init__(self, path: Path | None = None) -> None:
        """Open a file, which is created if it is missing; without one, nothing is kept."""
        try:
            self._file = sqlite3.connect(
                path or ":memory:", isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA foreign_keys = ON")
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._file.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise ConfigError("--glossaries", f"{path}: {error}; name another file") from error
        if version not in (0, VERSION):
            raise ConfigError("--glossaries", f"{path}: is no file of glossaries; name another")

    def create(self, owner: str, name: str, dictionaries: Sequence[Dictionary]) -> Summary:
        """Store a new glossary."""
        query = "SELECT count(*) FROM glossaries WHERE owner = ?"
        (count,) = self._file.execute(query, (owner,)).fetchone()
        if count >= MOST:
            raise RefusalError(f"there are {MOST:,} glossaries; delete one")
        number = secrets.token_hex(16)
        number = "-".join((number[:8], number[8:12], number[12:16], number[16:20], number[20:]))
        rows = [_row(number, dictionary) for dictionary in dictionaries]
        with self._file:
            self._file.execute("BEGIN")
            values = (number, owner, name, time.time())
            self._file.execute("INSERT INTO glossaries VALUES (?, ?, ?, ?)", values)
            self._file.executemany(
                "INSERT OR REPLACE INTO dictionaries VALUES (?, ?, ?, ?, ?)", rows
            )
        return self.get(owner, number)

    def get(self, owner: str, number: str) -> Summary:
        """Return a glossary of this owner, or raise an `UnknownError`."""
        query = "SELECT name, created FROM glossaries WHERE id = ? AND owner = ?"
        row = self._file.execute(query, (number, owner)).fetchone()
        if row is None:
            raise UnknownError("the glossary does not exist")
        query = "SELECT source, target, count FROM dictionaries WHERE id = ? ORDER BY 1, 2"
        pairs = tuple(self._file.execute(query, (number,)).fetchall())
        name, created = row
        return Summary(number, name, created, pairs)

    def all(self, owner: str) -> list[Summary]:
        """Return the glossaries of an owner, the oldest first."""
        query = "SELECT id FROM glossaries WHERE owner = ? ORDER BY created, id"
        rows = self._file.execute(query, (owner,)).fetchall()
        return [self.get(owner, number) for (number,) in rows]

    def rename(self, owner: str, number: str, name: str) -> None:
        """Give a glossary another name."""
        self.get(owner, number)
        self._file.execute("UPDATE glossaries SET name = ? WHERE id = ?", (name, number))

    def put(self, owner: str, number: str, dictionary: Dictionary, *, merge: bool = False) -> None:
        """Replace a dictionary, or add its entries to it."""
        self.get(owner, number)
        if merge and self._entries(number, dictionary.source, dictionary.target) is not None:
            old = self.read(owner, number, dictionary.source, dictionary.target).entries
            entries = {entry.source: entry for entry in (*old, *dictionary.entries)}
            dictionary = dictionary._replace(entries=tuple(entries.values()))
        query = "INSERT OR REPLACE INTO dictionaries VALUES (?, ?, ?, ?, ?)"
        self._file.execute(query, _row(number, dictionary))

    def read(self, owner: str, number: str, source: str, target: str) -> Glossary:
        """Return the entries of a dictionary, or raise an `UnknownError`."""
        self.get(owner, number)
        entries = self._entries(number, source, target)
        if entries is None:
            raise UnknownError(f"the glossary has no dictionary from {source} to {target}")
        return _parse(entries)

    def delete(self, owner: str, number: str) -> None:
        """Delete a glossary."""
        self.get(owner, number)
        self._file.execute("DELETE FROM glossaries WHERE id = ?", (number,))

    def delete_dictionary(self, owner: str, number: str, source: str, target: str) -> None:
        """Delete a dictionary of a glossary."""
        self.read(owner, number, source, target)
        query = "DELETE FROM dictionaries WHERE id = ? AND source = ? AND target = ?"
        self._file.execute(query, (number, base_code(source), base_code(target)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _entries(self, number: str, source: str, target: str) -> str | None:
        query = "SELECT entries FROM dictionaries WHERE id = ? AND source = ? AND target = ?"
        values = (number, base_code(source), base_code(target))
        row = self._file.execute(query, values).fetchone()
        return None if row is None else str(row[0])


def base_code(code: str) -> str:
    """Return a language code without its region, as glossaries have it."""
    return normalise_code(code).partition("-")[0]


def _row(number: str, dictionary: Dictionary) -> tuple[str, str, str, str, int]:
    entries = json.dumps(dictionary.entries, ensure_ascii=False)
    if len(entries) > MOST_BYTES:
        raise RefusalError(f"a glossary may have {MOST_BYTES:,} bytes; divide it")
    pair = base_code(dictionary.source), base_code(dictionary.target)
    return number, *pair, entries, len(dictionary.entries)


@lru_cache(maxsize=64)
def _parse(entries: str) -> Glossary:
    return Glossary(Entry(*entry) for entry in json.loads(entries))
