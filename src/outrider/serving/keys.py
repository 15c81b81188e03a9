"""API keys: only their hashes are kept, all of them are compared, and each has its own pace.

A key is 256 bits from the system's generator, so one round of SHA-256 is enough: there is nothing
to guess. Who asks with a wrong key waits for the same comparisons as who asks with a right one.
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
from outrider.serving.admission import Priority
from outrider.serving.answers import BrokenError, TooManyError, UnauthorisedError

__all__ = ["Key", "Keyring", "add_key", "admit", "remove_key"]

logger = logging.getLogger("outrider.serving")

PREFIX = "outrider-"
FRESH = 1.0
"""Seconds for which the file is not looked at again."""
GRACE = 60.0
"""Seconds for which the last keys stay valid while the file cannot be read."""


class Key(BaseModel):
    """What is kept of a key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Whose it is; stands in the log."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    rate: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    """Requests a minute; null for any number."""
    priority: Annotated[str, Field(pattern="^(low|normal|high)$")] = "normal"
    """The most it may ask for."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    keys: list[Key]


class Keyring:
    """The keys of a file, which is read again when it changes.

    While the file cannot be read (missing, damaged, no regular file), the last keys stay valid for
    `GRACE` seconds; then every check is refused with 503. A valid file without keys revokes all.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = monotonic) -> None:
        self._path, self._clock = path, clock
        # The stamp is taken before the file is read: a change in between is seen the next time.
        self._stamp, self._looked = _stamp(path), clock()
        self._keys = read_keys(path)
        self._fault: _KeyFileError | OSError | None = None
        self._failed = 0.0
        """When the file could not be read for the first time."""
        self._buckets: dict[str, tuple[float, float]] = {}
        """Requests that a key has left, and when that was so."""

    @property
    def fault(self) -> str | None:
        """Why the file cannot be read; None if it can."""
        self._look_again()
        return None if self._fault is None else str(self._fault)

    @property
    def expired(self) -> bool:
        """Whether the file has been unreadable for so long that no key is valid."""
        self._look_again()
        return self._fault is not None and self._clock() - self._failed >= GRACE

    def check(self, given: str | None) -> Key:
        """Return the key that was given, or refuse; one that asks too often is refused too."""
        if self.expired:
            raise BrokenError("the file of API keys cannot be read; see /ready", retry_after=FRESH)
        digest = _digest(given or "")
        found = None
        for key in self._keys:  # all of them, however early it is found
            if hmac.compare_digest(key.sha256, digest):
                found = key
        if given is None:
            raise UnauthorisedError("an API key is needed; send it as Authorization: Bearer KEY")
        if found is None:
            raise UnauthorisedError("the API key is not known")
        self._pace(found)
        return found

    def _pace(self, key: Key) -> None:
        """Refuse a key that has used up its minute."""
        if key.rate is None:
            return
        now = self._clock()
        left, then = self._buckets.get(key.sha256, (key.rate, now))
        left = min(max(1.0, key.rate), left + (now - then) * key.rate / 60)
        if left < 1:
            self._buckets[key.sha256] = left, now
            message = f"this key may ask {key.rate:g} times a minute; try again later"
            raise TooManyError(message, retry_after=(1 - left) * 60 / key.rate)
        self._buckets[key.sha256] = left - 1, now

    def _look_again(self) -> None:
        now = self._clock()
        if now - self._looked < FRESH:
            return
        self._looked, stamp = now, _stamp(self._path)
        if stamp == self._stamp and self._fault is None:
            return
        try:
            self._keys, self._stamp = read_keys(self._path), stamp
        except (_KeyFileError, OSError) as error:
            if self._fault is None:
                self._failed = now
                logger.error("%s; the last keys stay valid for %g seconds", error, GRACE)
            self._fault = error
        else:
            if self._fault is not None:
                logger.warning("%s can be read again", self._path)
            self._fault = None


def admit(request: Request, key: str | None = None) -> Priority:
    """Refuse a request without a right key, where keys are asked for; return its priority.

    The door has seen to it already unless the key stands in the body, as LibreTranslate's may.
    """
    keyring: Keyring | None = request.app.state.keyring
    if keyring is None:
        return Priority.normal
    held: Key | None = request.scope.get("key")
    if held is None:
        held = request.scope["key"] = keyring.check(key)
        request.scope["facts"]["key"] = held.name
    return Priority[held.priority]


def read_keys(path: Path) -> list[Key]:
    """Read a file of keys."""
    values = read_json(path, error=_KeyFileError, fix="make one with outrider key FILE NAME")
    try:
        return _File.model_validate(values).keys
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _KeyFileError(f"{path}: {where}: {first['msg']}") from None


def add_key(path: Path, name: str, *, rate: float | None, priority: str) -> str:
    """Make a key, keep its hash, and return it: nobody can tell it again."""
    keys = read_keys(path) if path.exists() else []
    if name in [key.name for key in keys]:
        raise ConfigError("NAME", f"{path} has a key of {name!r}; remove it first, with --remove")
    secret = PREFIX + secrets.token_urlsafe(32)
    try:
        new = Key(name=name, sha256=_digest(secret), rate=rate, priority=priority)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--{first['loc'][0]}", str(first["msg"])) from None
    _write(path, [*keys, new])
    return secret


def remove_key(path: Path, name: str) -> None:
    """Forget a key; a server that reads this file refuses it a second later."""
    keys = read_keys(path)
    if name not in [key.name for key in keys]:
        known = ", ".join(key.name for key in keys)
        raise ConfigError("NAME", f"{path} has no key of {name!r}; there are: {known}")
    _write(path, [key for key in keys if key.name != name])


def _write(path: Path, keys: list[Key]) -> None:
    write_json(path, {"keys": [key.model_dump() for key in keys]})
    path.chmod(0o600)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_ino, about.st_size


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


class _KeyFileError(ConfigError):
    """A file of keys that is not one."""

    def __init__(self, message: str) -> None:
        super().__init__("--keys", message)
