"""API keys: a file of SHA-256 hashes, each with a rate limit and a priority.

A key has 256 random bits, so one round of SHA-256 is sufficient. A key is compared with all hashes
in constant time.
"""

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from outrider.errors import ConfigError
from outrider.files import read_json, write_json
from outrider.serving.request import BrokenError, Priority, TooManyError, UnauthorisedError

logger = logging.getLogger("outrider.serving")

PREFIX = "outrider-"
FRESH = 1.0
"""Seconds between two checks of the file."""
GRACE = 60.0
"""Seconds for which the previous keys stay valid while the file cannot be read."""


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


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    keys: list[Key]


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
        self._keys = read_keys(path)
        self._fault: _KeyFileError | OSError | None = None
        self._failed = 0.0
        """Time of the first failure to read the file."""
        self._buckets: dict[str, tuple[float, float]] = {}
        """Requests left of each key, and the time of that count."""

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
        """Refuse a key over its rate limit, by a token bucket."""
        if key.rate is None:
            return
        now = self._clock()
        left, then = self._buckets.get(key.sha256, (key.rate, now))
        left = min(max(1.0, key.rate), left + (now - then) * key.rate / 60)
        if left < 1:
            self._buckets[key.sha256] = left, now
            message = f"this key allows {key.rate:g} requests per minute; try again later"
            raise TooManyError(message, retry_after=(1 - left) * 60 / key.rate)
        self._buckets[key.sha256] = left - 1, now

    def _reload(self) -> None:
        now = self._clock()
        if now - self._checked < FRESH:
            return
        self._checked, stamp = now, _stamp(self._path)
        if stamp == self._stamp and self._fault is None:
            return
        try:
            self._keys, self._stamp = read_keys(self._path), stamp
        except (_KeyFileError, OSError) as error:
            if self._fault is None:
                self._failed = now
                logger.error("%s; the previous keys stay valid for %g seconds", error, GRACE)
            self._fault = error
        else:
            if self._fault is not None:
                logger.warning("%s can be read again", self._path)
            self._fault = None


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


def read_keys(path: Path) -> list[Key]:
    """Read a key file."""
    values = read_json(path, error=_KeyFileError, fix="make one with outrider key FILE NAME")
    try:
        return _File.model_validate(values).keys
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _KeyFileError(f"{path}: {where}: {first['msg']}") from error


def add_key(path: Path, name: str, *, rate: float | None, priority: str) -> str:
    """Create a key, store its hash, and return the key, which cannot be recovered later."""
    keys = read_keys(path) if path.exists() else []
    if name in [key.name for key in keys]:
        raise ConfigError("NAME", f"{path} has a key of {name!r}; remove it first, with --remove")
    secret = PREFIX + secrets.token_urlsafe(32)
    try:
        new = Key(name=name, sha256=_digest(secret), rate=rate, priority=priority)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--{first['loc'][0]}", str(first["msg"])) from error
    _write(path, [*keys, new])
    return secret


def remove_key(path: Path, name: str) -> None:
    """Remove a key; a running server refuses it after at most `FRESH` seconds."""
    keys = read_keys(path)
    if name not in [key.name for key in keys]:
        known = ", ".join(key.name for key in keys)
        raise ConfigError("NAME", f"{path} has no key of {name!r}; known keys: {known}")
    _write(path, [key for key in keys if key.name != name])


def _write(path: Path, keys: list[Key]) -> None:
    write_json(path, {"keys": [key.model_dump() for key in keys]})
    path.chmod(0o600)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


class _KeyFileError(ConfigError):
    """An invalid key file."""

    def __init__(self, message: str) -> None:
        super().__init__("--keys", message)
