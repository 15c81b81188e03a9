"""What happened while drafting: rounds, acceptance, and where the time went."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Round", "Statistics"]


class Round(NamedTuple):
    """One block of one row: what was drafted, how much of it was confirmed, what came after."""

    drafted: tuple[int, ...]
    accepted: int
    """Tokens of the draft that stand in the text."""
    token: int | None
    """The model's own next token: a correction where a draft was refused, else a bonus; None where
    the row ended inside its draft or, with gamma above 0, all of the draft stands."""
    confidence: tuple[float, ...] = ()
    """How sure the drafter was of each token, where the backend tells."""


@dataclass
class Statistics:
    """Sums over rows and batches; a loop adds to it."""

    rounds: int = 0
    """Blocks verified, counted for each row."""
    tokens: int = 0
    """Tokens emitted in those rounds, end tokens included."""
    blocks: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How many rounds drafted so many tokens, of which so many were confirmed."""
    plain_rows: int = 0
    """Rows decoded without drafting: in mode ar, or because that was faster."""
    rechecked: int = 0
    """Near-ties that `strict` computed again, one token at a time."""
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("encode", "draft", "verify", "loop", "plain"), 0.0)
    )
    """Time in each part; `loop` is what lies between the calls of the model, `plain` all of the
    rows decoded without drafting."""
    notes: list[str] = field(default_factory=list)
    """What the user should know, such as why drafting switched itself off; each said once."""

    @property
    def tokens_per_round(self) -> float:
        """Tokens emitted for one pass of the model; 1 is plain decoding."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def drafted(self) -> list[int]:
        """How often a token was drafted at each place of a block."""
        return self._places(lambda drafted, accepted: drafted)

    @property
    def judged(self) -> list[int]:
        """How often verification looked at it, because all before it were confirmed."""
        return self._places(lambda drafted, accepted: min(drafted, accepted + 1))

    @property
    def accepted(self) -> list[int]:
        """How often it was confirmed, all before it included."""
        return self._places(lambda drafted, accepted: accepted)

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of the blocks whose draft held up to and including place 1, 2, ..."""
        return [kept / tried for kept, tried in zip(self.accepted, self.drafted, strict=True)]

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that verification looked at and confirmed."""
        judged = sum(self.judged)
        return sum(self.accepted) / judged if judged else 0.0

    def count(self, one: Round, emitted: int) -> None:
        """Add one round of one row that emitted so many tokens."""
        self.rounds += 1
        self.tokens += emitted
        self.blocks[len(one.drafted), one.accepted] += 1

    def note(self, text: str) -> None:
        """Remember something worth saying, once."""
        if text not in self.notes:
            self.notes.append(text)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a report."""
        return {
            "rounds": self.rounds,
            "tokens": self.tokens,
            "tokens_per_round": self.tokens_per_round,
            "acceptance": self.acceptance,
            "acceptance_by_position": self.acceptance_by_position,
            "plain_rows": self.plain_rows,
            "rechecked": self.rechecked,
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
        }

    def _places(self, reach: Callable[[int, int], int]) -> list[int]:
        """Count for each place of a block the rounds that reach it."""
        longest = max((drafted for drafted, _ in self.blocks), default=0)
        return [
            sum(n for block, n in self.blocks.items() if reach(*block) > place)
            for place in range(longest)
        ]
