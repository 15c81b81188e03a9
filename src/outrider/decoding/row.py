"""One request on its way through tandem decoding."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.decoding.request import Request
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

    def take(self, drafted: Sequence[int], accepted: int, token: int, *, eos: int) -> int:
        """Say `accepted` tokens of a draft and then `token`; return how many found a place.

        The end token and the limit end a row exactly where token-by-token decoding stops, be it in
        the middle of a draft. A row that is done keeps what the state holds of it as it is.
        """
        room = self.room
        drafted = drafted[:room]
        said = [*drafted[:accepted], token][:room]
        if eos in said:
            said = said[: said.index(eos) + 1]
        count = len(said)
        if count <= accepted:
            self.rounds.append(Round(tuple(said), count, None))
        else:
            self.rounds.append(Round(tuple(drafted), accepted, token))
        self.tokens += said
        self.done = said[-1] == eos or count == room
        if not self.done:
            self.held += count
            self.newest = said[-1]
        return count
