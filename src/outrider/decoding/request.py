"""What goes into a session, and what comes out.

One request on its way through a session.

Tokens that must not be produced: suppressed ids always, end tokens while it is too early.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from outrider.decoding.protocol import Backend
from outrider.decoding.queries import Forbidden
from outrider.decoding.sampling import Stream
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Round
from outrider.errors import ConfigError, InputError

__all__ = [
    "Finish",
    "Hypothesis",
    "Masked",
    "Request",
    "Row",
    "TokenMask",
    "check_suppress",
    "needs",
    "row_seed",
    "token_limit",
    "up_to_end",
]

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


@dataclass(slots=True, eq=False, weakref_slot=True)
class Row:
    """What a row has said so far, and what the model's state holds of it."""

    id: int
    request: Request
    config: DecodeSettings
    limit: int
    """Tokens it may say, end token included."""
    ends: frozenset[int]
    """Tokens that end it."""
    newest: int
    """Its newest token, which the state has not taken in yet."""
    held: int
    """Tokens the state holds: all of the prompt and the text but the newest."""
    expires: float = math.inf
    """When it is stopped, by `time.monotonic`."""
    stream: Stream | None = None
    """Where its random numbers come from, if it draws any."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    done: bool = False
    stopped: Finish | None = None
    """Why it was stopped on the way."""
    best: list[Hypothesis] = field(default_factory=list)
    """What beam search or a parallel decoder has found, or what was drawn, best first."""
    drawn: list["Row"] = field(default_factory=list)
    """Rows that are decoded in its place, where the best of several drawn texts is wanted."""
    told: int = 0
    """Tokens that were handed out already."""
    told_rounds: int = 0

    @property
    def room(self) -> int:
        """Tokens it may still say."""
        return self.limit - len(self.tokens)

    def say(self, token: int) -> None:
        """Say one token of the model's own."""
        self.tokens.append(token)
        if token in self.ends or len(self.tokens) >= self.limit:
            self.done = True
        else:
            self.held += 1
            self.newest = token

    def take(
        self,
        drafted: Sequence[int],
        accepted: int,
        token: int | None,
        confidence: Sequence[float] = (),
    ) -> int:
        """Say `accepted` tokens of a draft and then `token`, if any; return how many found a place.

        An end token and the limit end a row exactly where token-by-token decoding stops, be it in
        the middle of a draft. A row that is done keeps what the state holds of it as it is.
        """
        room = self.limit - len(self.tokens)
        said = list(drafted[:accepted])
        if token is not None:
            said.append(token)
        if len(said) > room:
            said, drafted = said[:room], drafted[:room]
        count = len(said) if self.ends.isdisjoint(said) else up_to_end(said, self.ends)
        if count <= accepted:
            said = said[:count]
            drafted, accepted, token = said, count, None
        self.rounds.append(
            Round(tuple(drafted), accepted, token, tuple(confidence[: len(drafted)]))
        )
        self.tokens += said
        if count == room or said[-1] in self.ends:
            self.done = True
        else:
            self.held += count
            self.newest = said[-1]
        return count

    def untold_rounds(self) -> tuple[Round, ...]:
        """Return the rounds that were not handed out yet, and hand them out."""
        rounds = tuple(self.rounds[self.told_rounds :])
        self.told_rounds = len(self.rounds)
        return rounds

    def stop(self, why: Finish) -> None:
        """End it where it is."""
        for row in self.drawn:
            if not row.done:
                row.stop(why)
        self.done, self.stopped = True, why

    def gather(self) -> None:
        """Take the likeliest of the drawn texts, once all are there."""
        if all(row.done for row in self.drawn):
            self.best = likeliest(self.drawn)[: self.config.n_best]
            self.done = True

    def hypotheses(self) -> list[Hypothesis]:
        """Return what it came to, best first, without the end token."""
        if self.best:
            return self.best
        tokens, log_probs = self.tokens, self.log_probs
        ended = bool(tokens) and tokens[-1] in self.ends
        forced = self.config.force_eos and not ended and self.stopped is None
        if forced:
            log_probs = log_probs[:-1]  # a forced end token is certain
        score = sum(log_probs) if self.config.scores else None
        words = tokens[:-1] if ended or forced else tokens
        finish = self.stopped or ("eos" if ended else "length")
        return [Hypothesis(tuple(words), finish, score, tuple(self.rounds))]


def likeliest(drawn: Sequence[Row]) -> list[Hypothesis]:
    """Sort drawn texts, best first, and name equal ones once.

    score(y) = mean_t log p(y_t | y_<t, x)      the end token counts

    p is the model's own; temperature, top-k and top-p only shape the draw.
    """
    found: dict[tuple[int, ...], Hypothesis] = {}
    for row in drawn:
        (text,) = row.hypotheses()
        count = len(text.tokens) + (text.finish == "eos")
        found.setdefault(text.tokens, replace(text, score=(text.score or 0.0) / max(1, count)))
    return sorted(found.values(), key=_worth, reverse=True)


def _worth(text: Hypothesis) -> tuple[bool, float]:
    """Tell good texts from worse; what was stopped on the way comes last."""
    assert text.score is not None
    return text.finish in ("eos", "length"), text.score


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
