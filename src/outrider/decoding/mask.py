"""Tokens that must not be produced: suppressed ids always, end tokens while it is too early."""

from collections.abc import Collection, Iterable, Sequence

from outrider.decoding.questions import Forbidden
from outrider.decoding.settings import DecodeSettings
from outrider.errors import ConfigError

__all__ = ["Masked", "TokenMask", "check_suppress"]

Masked = tuple[Sequence[int], Collection[int], int]
"""Suppressed tokens, end tokens, and the number of tokens before which none may end."""


class TokenMask:
    """Says what is forbidden after so many tokens."""

    def __init__(self, suppress: Iterable[int], ends: Iterable[int], least: int) -> None:
        """Forbid some tokens always, and end tokens before the `least` number of tokens."""
        self._least = least
        self._ends = tuple(sorted(ends))
        self.always = Forbidden(tuple(sorted(set(suppress))))
        """What is forbidden to everyone."""

    @property
    def waits(self) -> bool:
        """Whether an end token may come too early."""
        return self._least > 0

    def after(self, produced: Sequence[int]) -> Forbidden:
        """Return what is forbidden to rows that have produced so many tokens each."""
        if not self._least or min(produced) >= self._least:
            return self.always
        early = tuple(max(0, self._least - count) for count in produced)
        return Forbidden(self.always.always, self._ends, early)


def check_suppress(config: DecodeSettings, vocab_size: int, ends: Iterable[int]) -> None:
    """Refuse to suppress what is no token, or so much that nothing is left to say."""
    suppressed = set(config.suppress)
    for token in suppressed:
        if not 0 <= token < vocab_size:
            accepted = f"expected token ids from 0 to {vocab_size - 1}"
            raise ConfigError("suppress", f"got {token}, {accepted}")
    if config.min_new_tokens:
        suppressed |= set(ends)
    if len(suppressed) == vocab_size:
        early = " before min_new_tokens" if config.min_new_tokens else ""
        message = f"leaves none of {vocab_size} tokens to say{early}; suppress fewer"
        raise ConfigError("suppress", message)
