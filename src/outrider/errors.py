"""Every error a user can cause, as one tree.

OutriderError
├── ConfigError          a key or value in a config, an override or an option is wrong
├── DataError            a corpus, shard or prepared folder is not what it should be
├── ModelError           a model folder is missing, foreign or damaged
├── InputError           a text or request handed to a loaded model cannot be processed
├── UnsupportedError     the chosen parts cannot do this (declared by the part itself)
├── ResourceError        the machine ran out of something: disk, memory, permission
└── MissingExtraError    an optional dependency is not installed

A message names the key as the user typed it, the value received, what is accepted, and the fix.
"""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "ConfigError",
    "DataError",
    "FallbackWarning",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "OutriderError",
    "ResourceError",
    "UnsupportedError",
    "nearest",
]


class OutriderError(Exception):
    """Base of all errors caused by a user's input; the command line prints it and exits with 2."""


class ConfigError(OutriderError):
    """A wrong key or value; `key` is spelled as the user typed it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


class DataError(OutriderError):
    """A corpus or prepared folder is not what it should be."""


class ModelError(OutriderError):
    """A model folder is missing, of a foreign kind, or damaged."""


class InputError(OutriderError):
    """A text handed to a loaded model cannot be processed."""


class UnsupportedError(OutriderError):
    """The chosen parts cannot do what was asked of them."""


class ResourceError(OutriderError):
    """The machine ran out of disk, memory or permission."""


class MissingExtraError(OutriderError):
    """An optional dependency is missing; the message says how to install it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed: pip install 'outrider[{extra}]'"
        )


class FallbackWarning(UserWarning):
    """Something was asked for that another part does instead, as well but not as fast."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the choice closest to `word`, or an empty string."""
    close = get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
