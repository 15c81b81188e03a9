"""One request on its way through tandem decoding."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from outrider.decoding.request import Request, up_to_end
from outrider.decoding.statistics import Round

__all__ = ["Row"]


@dataclass(slots=True)
class Row:
    """What a row has said so far, and what the model's state holds of it."""

    index: int
    """Its place among the requests."""
    request: Request
    limit: int
    """Tokens it may say, end token included."""
    newest: int
    """Its newest token, which the state has not taken in yet."""
    held: int
    """Tokens the state holds: all of the prompt and the text but the newest."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    done: bool = False

    @property
    def room(self) -> int:
        """Tokens it may still say."""
        return self.limit - len(self.tokens)

    def take(
        self,
        drafted: Sequence[int],
        accepted: int,
        token: int | None,
        *,
        ends: Collection[int],
        confidence: Sequence[float] = (),
    ) -> int:
        """Say `accepted` tokens of a draft and then `token`, if any; return how many found a place.

        An end token and the limit end a row exactly where token-by-token decoding stops, be it in
        the middle of a draft. A row that is done keeps what the state holds of it as it is.
        """
        room = self.room
        drafted = drafted[:room]
        own = [] if token is None else [token]
        said = [*drafted[:accepted], *own][:room]
        count = up_to_end(said, ends)
        said = said[:count]
        if count <= accepted:
            done = Round(tuple(said), count, None)
        else:
            done = Round(tuple(drafted), accepted, token)
        self.rounds.append(done._replace(confidence=tuple(confidence[: len(done.drafted)])))
        self.tokens += said
        self.done = said[-1] in ends or count == room
        if not self.done:
            self.held += count
            self.newest = said[-1]
        return count
