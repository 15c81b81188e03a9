"""Requests, their state while they are decoded, and their results."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from outrider.decoding.protocol import Backend
from outrider.decoding.queries import Forbidden
from outrider.decoding.sampling import Stream
from outrider.decoding.statistics import Round
from outrider.errors import ConfigError, InputError, ModelError
from outrider.options import DecodeConfig

Finish = Literal["eos", "length", "deadline", "cancelled"]

DEFAULT_NEW_TOKENS = 256
BLOCK = 8
"""Default block size without a controller."""
LONGEST_COPY = 32
"""Most tokens of a proposal of a draft source without a state in the backend."""
_ACCELERATE = "make one with outrider accelerate, or "
_TRAIN = (
    "train one with outrider train (model.type: {}, model.target: the folder of this model) "
    "and load the model folder that writes"
)
FINE = 1e-6
"""Largest `epsilon` at which near-ties are rare enough that all are replayed."""


@dataclass(frozen=True)
class Request:
    """One text to decode, with everything that may differ between rows."""

    source: Sequence[int] = ()
    """Tokens of the encoder, end token included; empty for a language model."""
    prompt: Sequence[int] = ()
    """Tokens fed to the decoder after its start token."""
    start: int | None = None
    """The decoder's first token; None for the model's own start token."""
    max_new_tokens: int | None = None
    """Overrides the config for this row."""
    seed: int | None = None
    """Overrides the config for this row."""
    config: DecodeConfig | None = None
    """Decode options of this row; None for those of the session."""
    ends: tuple[int, ...] = ()
    """End tokens of this row in addition to the model's."""
    text: Sequence[int] = ()
    """For draft sources: the source text in target tokens and the order of generation; by default
    `prompt`."""
    deadline: float | None = None
    """Seconds after `Session.add` at which decoding stops and the partial text is returned."""

    needs: tuple[int, int] = (0, 0)
    """Most rows and tokens that it occupies; (0, 0) until `sized` computes them."""

    def sized(self, backend: Backend, config: DecodeConfig) -> "Request":
        """Return the request with its options, by default these, and what it needs."""
        config = self.config or config
        return replace(self, config=config, needs=needs(backend, self, config))

    def opening(self, backend: Backend) -> list[int]:
        """Return the start token and the prompt."""
        return [backend.start if self.start is None else self.start, *self.prompt]


@dataclass(frozen=True)
class Hypothesis:
    """One finished sequence, without prompt, start and end token."""

    tokens: tuple[int, ...]
    finish: Finish
    """`eos`: the model ended it; `length`: it reached its limit; `deadline`, `cancelled`: it was
    stopped."""
    score: float | None = None
    """Log-probability; divided by the length penalty in beam search. None if not requested."""
    rounds: tuple[Round, ...] = field(default=(), compare=False, repr=False)
    """Rounds of tandem decoding."""
    alignment: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
    """For each token the place of its source token in `Request.source`; None if not requested."""
    faults: tuple[str, ...] = field(default=(), compare=False)
    """Faults that another decoding did not remove, see `runtime/guards.py`."""
    missing_terms: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Terms of a glossary, and their translations, that the text lacks."""


def up_to_end(tokens: Sequence[int], ends: Collection[int]) -> int:
    """Count the tokens of a text up to its first end token, inclusive."""
    for count, token in enumerate(tokens, start=1):
        if token in ends:
            return count
    return len(tokens)


class Verdict(NamedTuple):
    """The judgement on one row's draft."""

    accepted: int
    token: int | None
    """The token after the accepted ones; None where the last position scored was accepted."""


def compare(drafted: Sequence[int], best: Sequence[int]) -> Verdict:
    """Accept a draft up to its first token that differs from the argmax."""
    accepted = 0
    for guess, token in zip(drafted, best, strict=False):
        if guess != token:
            break
        accepted += 1
    return Verdict(accepted, best[accepted] if accepted < len(best) else None)


def row_seed(request: Request, config: DecodeConfig) -> int:
    """Return the seed of this row."""
    return config.seed if request.seed is None else request.seed


def needs(backend: Backend, request: Request, config: DecodeConfig) -> tuple[int, int]:
    """Return the most rows and tokens that a request occupies."""
    copies = config.beams if config.strategy == "beam" else config.candidates
    # A rejected block occupies capacity beyond the last accepted token.
    block = block_size(backend, config) if config.mode == "tandem" else 0
    limit = token_limit(backend, request, config)
    return copies, copies * (len(request.source) + len(request.prompt) + limit + block)


def token_limit(backend: Backend, request: Request, config: DecodeConfig) -> int:
    """Return the most tokens, end token included, that may be added to this row."""
    limit = config.max_new_tokens or DEFAULT_NEW_TOKENS
    if request.max_new_tokens is not None:
        limit = request.max_new_tokens
        if limit < 1:
            raise ConfigError("max_new_tokens", f"got {limit}, expected 1 or more")
    if backend.max_length is None:
        return limit
    # The start token and the prompt take positions; the last token is never fed back.
    positions = backend.max_length - len(request.prompt)
    if positions < 1:
        raise InputError(
            f"a prompt of {len(request.prompt)} tokens leaves no position for new tokens: "
            f"this model has {backend.max_length} positions; shorten the prompt"
        )
    return min(limit, positions)


def check_mode(backend: Backend, config: DecodeConfig) -> None:
    """Check that the model has the parts that a mode needs."""
    drafted = config.mode == "tandem" and config.draft == "drafter"
    drafted = drafted or (config.mode == "parallel" and config.decoder == "drafter")
    if drafted and backend.drafts is None:
        needed = f"this model has no drafter, which mode {config.mode} needs"
        raise ModelError(f"{needed}; {_ACCELERATE}{_TRAIN.format('drafter')}")
    if config.mode == "tandem":
        longest, draft = longest_draft(backend, config), config.draft
        if config.gamma and not drafted:
            message = f"got {config.gamma}, but draft {draft} has no probabilities; use 0"
            raise ConfigError("gamma", message)
        if config.draft_tokens is not None and config.draft_tokens > longest:
            message = f"got {config.draft_tokens}, but this {draft} drafts at most {longest}"
            raise ConfigError("draft_tokens", message)
    elif config.mode == "parallel" and backend.slots is None:
        if config.decoder == "ctc":
            raise ModelError(f"this model has no CTC decoder; {_TRAIN.format('ctc')}")
        if backend.drafts is None:
            needed = "mode parallel needs a CTC decoder or a drafter, and this model has neither"
            raise ModelError(f"{needed}; {_TRAIN.format('ctc or drafter')}")


def is_exact(config: DecodeConfig) -> bool:
    """Whether the text is that of greedy decoding, so that only tokens are compared."""
    return config.strategy == "greedy" and config.gamma == 0


def may_draft(backend: Backend, config: DecodeConfig) -> bool:
    """Whether drafts of any size, also 0, give the same text, so that a controller may choose."""
    return (
        longest_draft(backend, config) > 0
        and config.mode != "parallel"
        and is_exact(config)
        and config.draft_tokens is None
        and resolves_ties(backend, config)
    )


def resolves_ties(backend: Backend, config: DecodeConfig) -> bool:
    """Whether near-ties are replayed, or cannot occur."""
    return config.strict or backend.epsilon <= FINE


def longest_draft(backend: Backend, config: DecodeConfig) -> int:
    """Return the most tokens that its draft source proposes at once."""
    if config.draft != "drafter":
        return LONGEST_COPY
    return 0 if backend.drafts is None else backend.drafts.longest


def block_size(backend: Backend, config: DecodeConfig) -> int:
    """Return the block size without a controller."""
    return config.draft_tokens or min(BLOCK, longest_draft(backend, config))


@dataclass(slots=True, eq=False, weakref_slot=True)
class Row:
    """A request while it is decoded: its tokens, and how many of them the state holds."""

    id: int
    request: Request
    config: DecodeConfig
    limit: int
    """Most tokens, end token included."""
    ends: frozenset[int]
    """Tokens that end it."""
    last: int
    """Its last token, which has not been fed yet."""
    cached: int
    """Tokens in the state: prompt and text except the last token."""
    expires: float = math.inf
    """Its deadline, by `time.monotonic`."""
    stream: Stream | None = None
    """Its random numbers, if it samples."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    done: bool = False
    stopped: Finish | None = None
    """Why it was stopped early."""
    best: list[Hypothesis] = field(default_factory=list)
    """Hypotheses of beam search, of a parallel decoder or of `drawn`, best first."""
    drawn: list["Row"] = field(default_factory=list)
    """Rows decoded in its place to choose the best of several sampled texts."""
    reported: int = 0
    """Tokens already reported in an `Update`."""
    reported_rounds: int = 0
    needs: tuple[int, int] = (0, 0)
    """Most rows and tokens that it occupies."""

    @property
    def remaining(self) -> int:
        """Tokens until its limit."""
        return self.limit - len(self.tokens)

    def append(self, token: int) -> None:
        """Append one token of the model."""
        self.tokens.append(token)
        if token in self.ends or len(self.tokens) >= self.limit:
            self.done = True
        else:
            self.cached += 1
            self.last = token

    def accept(
        self,
        drafted: Sequence[int],
        accepted: int,
        token: int | None,
        confidence: Sequence[float] = (),
    ) -> int:
        """Append `accepted` tokens of a draft and then `token`, if any; return the number appended.

        An end token or the limit ends a row exactly where token-by-token decoding stops, also
        inside a draft. `cached` of a row that is done does not change.
        """
        remaining = self.remaining
        new = list(drafted[:accepted])
        if token is not None:
            new.append(token)
        if len(new) > remaining:
            new, drafted = new[:remaining], drafted[:remaining]
        count = len(new) if self.ends.isdisjoint(new) else up_to_end(new, self.ends)
        if count <= accepted:
            new = new[:count]
            drafted, accepted, token = new, count, None
        self.rounds.append(
            Round(tuple(drafted), accepted, token, tuple(confidence[: len(drafted)]))
        )
        self.tokens += new
        if count == remaining or new[-1] in self.ends:
            self.done = True
        else:
            self.cached += count
            self.last = new[-1]
        return count

    def take_new_rounds(self) -> tuple[Round, ...]:
        """Return the rounds that were not reported yet and mark them as reported."""
        rounds = tuple(self.rounds[self.reported_rounds :])
        self.reported_rounds = len(self.rounds)
        return rounds

    def stop(self, why: Finish) -> None:
        """Stop early."""
        for row in self.drawn:
            if not row.done:
                row.stop(why)
        self.done, self.stopped = True, why

    def gather(self) -> None:
        """Keep the likeliest sampled texts, once all are done."""
        if all(row.done for row in self.drawn):
            self.best = likeliest(self.drawn)[: self.config.n_best]
            self.done = True

    def hypotheses(self) -> list[Hypothesis]:
        """Return the results, best first, without end tokens."""
        if self.best:
            return self.best
        tokens, log_probs = self.tokens, self.log_probs
        ended = bool(tokens) and tokens[-1] in self.ends
        forced = self.config.force_eos and not ended and self.stopped is None
        if forced:
            log_probs = log_probs[:-1]  # a forced end token has probability 1
        score = sum(log_probs) if self.config.scores else None
        text = tokens[:-1] if ended or forced else tokens
        finish = self.stopped or ("eos" if ended else "length")
        return [Hypothesis(tuple(text), finish, score, tuple(self.rounds))]


def likeliest(drawn: Sequence[Row]) -> list[Hypothesis]:
    """Sort sampled texts without duplicates, best first; texts stopped early come last.

    score(y) = mean_t log p(y_t | y_<t, x)      the end token counts

    p is the model's distribution, without temperature, top-k and top-p.
    """
    texts: dict[tuple[int, ...], Hypothesis] = {}
    for row in drawn:
        (text,) = row.hypotheses()
        count = len(text.tokens) + (text.finish == "eos")
        texts.setdefault(text.tokens, replace(text, score=(text.score or 0.0) / max(1, count)))
    return sorted(texts.values(), key=_rank, reverse=True)


def _rank(text: Hypothesis) -> tuple[bool, float]:
    assert text.score is not None
    return text.finish in ("eos", "length"), text.score


Masked = tuple[Sequence[int], Collection[int], int]
"""Suppressed tokens, end tokens, and the number of tokens before which end tokens are forbidden."""


class TokenMask:
    """Forbidden tokens by the number of tokens produced: `suppress`, and early `ends`."""

    def __init__(self, suppress: Iterable[int], ends: Iterable[int], least: int) -> None:
        self._least = least
        self._ends = tuple(sorted(ends))
        self.always = Forbidden(tuple(sorted(set(suppress))))
        """Tokens forbidden in all rows at all positions."""

    @property
    def waits(self) -> bool:
        """Whether end tokens are forbidden at first."""
        return self._least > 0

    def after(self, produced: Sequence[int]) -> Forbidden:
        """Return the forbidden tokens of rows that have produced so many tokens each."""
        if not self._least or min(produced) >= self._least:
            return self.always
        early = tuple(max(0, self._least - count) for count in produced)
        return Forbidden(self.always.always, self._ends, early)


def check_suppress(config: DecodeConfig, vocab_size: int, ends: Iterable[int]) -> None:
    """Check that suppressed ids are tokens and that some token remains allowed."""
    suppressed = set(config.suppress)
    for token in suppressed:
        if not 0 <= token < vocab_size:
            accepted = f"expected token ids from 0 to {vocab_size - 1}"
            raise ConfigError("suppress", f"got {token}, {accepted}")
    if config.min_new_tokens:
        suppressed |= set(ends)
    if len(suppressed) == vocab_size:
        early = " before min_new_tokens" if config.min_new_tokens else ""
        message = f"leaves none of {vocab_size} tokens allowed{early}; suppress fewer"
        raise ConfigError("suppress", message)
