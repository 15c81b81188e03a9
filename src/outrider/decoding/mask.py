"""Tokens that must not be produced: suppressed ids always, end tokens while it is too early."""

from collections.abc import Sequence

from outrider.decoding.config import DecodeConfig
from outrider.decoding.questions import Forbidden
from outrider.errors import ConfigError

__all__ = ["TokenMask", "check_suppress"]


class TokenMask:
    """Says what is forbidden after so many tokens."""

    def __init__(self, config: DecodeConfig, *, ends: Sequence[int]) -> None:
        self._least = config.min_new_tokens
        self._ends = tuple(sorted(ends))
        self._always = Forbidden(tuple(sorted(set(config.suppress))))

    def after(self, produced: Sequence[int]) -> Forbidden:
        """Return what is forbidden to rows that have produced so many tokens each."""
        if not self._least or min(produced) >= self._least:
            return self._always
        early = tuple(max(0, self._least - count) for count in produced)
        return Forbidden(self._always.always, self._ends, early)


def check_suppress(config: DecodeConfig, vocab_size: int, ends: Sequence[int]) -> None:
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
