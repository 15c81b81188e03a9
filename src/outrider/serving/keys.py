"""API keys: their rights, rates and use. `key_file.py` stores them.

A key is compared with all hashes in constant time.
"""

import hashlib
import hmac
import logging
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from pydantic import ValidationError
from starlette.requests import Request

from outrider.errors import ConfigError
from outrider.serving import key_file
from outrider.serving.key_file import Key, KeyFileError, check_regular, open_keys, read_keys
from outrider.serving.request import BrokenError, Priority, TooManyError, UnauthorisedError

logger = logging.getLogger("outrider.serving")

PREFIX = "outrider-"
FRESH = 1.0
"""Seconds between two checks of the file."""
GRACE = 60.0
"""Seconds for which the previous keys stay valid while the file cannot be read."""


class Keyring:
    """The keys of a file, which is read again when it changes.

    While the file cannot be read (missing, damaged, not a regular file), the previous keys stay
    valid for `GRACE` seconds; then every check fails with 503. A valid file without keys revokes
    all.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = monotonic) -> None:
        self._path, self._clock = path, clock
        # The stamp is taken before reading, so that a change in between is noticed later.
        self._stamp, self._checked = _stamp(path), clock()
        self._file: sqlite3.Connection | None = open_keys(path)
        self._keys = read_keys(self._file, path)
        self._fault: KeyFileError | OSError | None = None
        self._failed = 0.0
        """Time of the first failure to read the file."""
        self._used: Counter[tuple[str, str]] = Counter()
        """Characters by key and month that are not stored yet."""

    @property
    def fault(self) -> str | None:
        """Reason why the file cannot be read; None if it can."""
        self._reload()
        return None if self._fault is None else str(self._fault)

    @property
    def expired(self) -> bool:
        """Whether the file has been unreadable for longer than `GRACE`."""
        self._reload()
        return self._fault is not None and self._clock() - self._failed >= GRACE

    def check(self, secret: str | None) -> Key:
        """Return the key of a secret; refuse unknown keys and keys over their rate limit."""
        if self.expired:
            raise BrokenError("the key file cannot be read; see /ready", retry_after=FRESH)
        digest = _digest(secret or "")
        match = None
        for key in self._keys:  # constant time: no early exit
            if hmac.compare_digest(key.sha256, digest):
                match = key
        if secret is None:
            raise UnauthorisedError("an API key is needed; send it as Authorization: Bearer KEY")
        if match is None:
            raise UnauthorisedError("the API key is not known")
        self._limit_rate(match)
        return match

    def _limit_rate(self, key: Key) -> None:
        """Refuse a key over its rate limit, by a token bucket that all servers share."""
        if key.rate is None or self._file is None:
            return
        try:
            wait = key_file.take_request(self._file, key, time.time())
        except sqlite3.Error as error:  # the limit is suspended while the file is unusable
            self._fail(KeyFileError(f"{self._path}: {error}"))
            return
        if wait:
            message = f"this key allows {key.rate:g} requests per minute; try again later"
            raise TooManyError(message, retry_after=wait)

    def count(self, key: Key, characters: int) -> None:
        """Add characters to the use of a key."""
        self._used[key.name, _month()] += characters
        if self._file is None:
            return
        try:
            for (name, month), more in list(self._used.items()):
                key_file.add_usage(self._file, name, month, more)
                del self._used[name, month]
        except sqlite3.Error as error:  # stored with the next request
            self._fail(KeyFileError(f"{self._path}: {error}"))

    def used(self, key: Key) -> int:
        """Return the characters that a key has translated this month (UTC)."""
        month = _month()
        try:
            stored = 0
            if self._file is not None:
                stored = key_file.read_usage(self._file, key.name, month)
        except sqlite3.Error as error:
            self._fail(KeyFileError(f"{self._path}: {error}"))
        return stored + self._used[key.name, month]

    def _reload(self) -> None:
        now = self._clock()
        if now - self._checked < FRESH:
            return
        self._checked, stamp = now, _stamp(self._path)
        try:
            check_regular(self._path)
            if stamp != self._stamp or self._file is None:
                self.close()
                self._file = open_keys(self._path)
            self._keys, self._stamp = read_keys(self._file, self._path), stamp
        except (KeyFileError, OSError) as error:
            self.close()
            self._fail(error)
        else:
            if self._fault is not None:
                logger.warning("%s can be used again", self._path)
            self._fault = None

    def _fail(self, error: KeyFileError | OSError) -> None:
        if self._fault is None:
            self._failed = self._clock()
            logger.error("%s; the previous keys stay valid for %g seconds", error, GRACE)
        self._fault = error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def admit(request: Request, key: str | None = None) -> Priority:
    """Require a valid key, if the server needs one; return its highest priority.

    `guard.py` has checked it unless it is in the body, as in LibreTranslate's API.
    """
    keyring: Keyring | None = request.app.state.keyring
    if keyring is None:
        return Priority.normal
    checked: Key | None = request.scope.get("key")
    if checked is None:
        checked = request.scope["key"] = keyring.check(key)
        request.scope["facts"]["key"] = checked.name
    return Priority[checked.priority]


def add_key(path: Path, name: str, *, rate: float | None, priority: str) -> str:
    """Create a key, store its hash, and return the key, which cannot be recovered later."""
    secret = PREFIX + secrets.token_urlsafe(32)
    try:
        key = Key(name=name, sha256=_digest(secret), rate=rate, priority=priority)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--{first['loc'][0]}", str(first["msg"])) from error
    key_file.insert_key(path, key)
    return secret


def remove_key(path: Path, name: str) -> None:
    """Remove a key; a running server refuses it after at most `FRESH` seconds."""
    key_file.delete_key(path, name)


def _month() -> str:
    return time.strftime("%Y-%m", time.gmtime())


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
