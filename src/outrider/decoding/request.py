"""What goes into a session, and what comes out."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from outrider.decoding.protocol import Backend
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Round
from outrider.errors import ConfigError, InputError

__all__ = ["Finish", "Hypothesis", "Request", "needs", "row_seed", "token_limit", "up_to_end"]

Finish = Literal["eos", "length", "deadline", "cancelled"]

DEFAULT_NEW_TOKENS = 256


@dataclass(frozen=True)
class Request:
    """One row. Whatever may differ between rows is here, so no row depends on its neighbours."""

    source: Sequence[int] = ()
    """Tokens of the encoder, end token included; empty for a language model."""
    prompt: Sequence[int] = ()
    """Tokens the decoder is given after its start token."""
    start: int | None = None
    """What the decoder is given first; None for the model's own start token."""
    max_new_tokens: int | None = None
    """Overrides the config for this row."""
    seed: int | None = None
    """Overrides the config for this row."""
    config: DecodeSettings | None = None
    """How to decode this row: mode, strategy, gamma, beams, suppressed tokens, everything; None for
    what the session was opened with."""
    ends: tuple[int, ...] = ()
    """Tokens that end this row beside those that end every text of the model."""
    deadline: float | None = None
    """Seconds from being added, after which it is handed back as far as it came."""

    def opening(self, backend: Backend) -> list[int]:
        """Return what the decoder is given before it says anything."""
        return [backend.start if self.start is None else self.start, *self.prompt]


@dataclass(frozen=True)
class Hypothesis:
    """One finished sequence, without prompt, start and end token."""

    tokens: tuple[int, ...]
    finish: Finish
    """`eos`: the model ended it; `length`: it ran into its limit; `deadline`, `cancelled`: it was
    stopped on the way."""
    score: float | None = None
    """Log-probability; divided by the length penalty in beam search. None if not asked for."""
    rounds: tuple[Round, ...] = field(default=(), compare=False, repr=False)
    """How tandem decoding came to it; no part of what it is."""


def up_to_end(tokens: Sequence[int], ends: Collection[int]) -> int:
    """Count the tokens of a text up to its first end token, that one included."""
    for count, token in enumerate(tokens, start=1):
        if token in ends:
            return count
    return len(tokens)


def row_seed(request: Request, config: DecodeSettings) -> int:
    """Return what this row's random numbers come from."""
    return config.seed if request.seed is None else request.seed


def needs(backend: Backend, request: Request, config: DecodeSettings) -> tuple[int, int]:
    """Return how many rows and how many tokens a request takes at most."""
    copies = config.beams if config.strategy == "beam" else config.candidates
    # A block that is refused has taken room beyond the last token that may stand.
    drafts = backend.drafts if config.mode == "tandem" else None
    block = 0 if drafts is None else drafts.longest
    limit = token_limit(backend, request, config)
    return copies, copies * (len(request.source) + len(request.prompt) + limit + block)


def token_limit(backend: Backend, request: Request, config: DecodeSettings) -> int:
    """Return how many tokens, end token included, may be added to this row."""
    wanted = config.max_new_tokens or DEFAULT_NEW_TOKENS
    if request.max_new_tokens is not None:
        wanted = request.max_new_tokens
        if wanted < 1:
            raise ConfigError("max_new_tokens", f"got {wanted}, expected 1 or more")
    if backend.max_length is None:
        return wanted
    # The start token and the prompt take positions; the last token is never fed back.
    room = backend.max_length - len(request.prompt)
    if room < 1:
        raise InputError(
            f"a prompt of {len(request.prompt)} tokens leaves no room to generate: "
            f"this model counts to {backend.max_length}; shorten the prompt"
        )
    return min(wanted, room)
