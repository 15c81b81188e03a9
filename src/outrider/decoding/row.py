"""One request on its way through a session."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outrider.decoding.request import Finish, Hypothesis, Request, up_to_end
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Round
from outrider.decoding.stream import Stream

__all__ = ["Row"]


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
