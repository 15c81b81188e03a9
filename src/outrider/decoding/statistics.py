"""Statistics of tandem decoding: rounds, acceptance and time."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Round(NamedTuple):
    """One verified block of one row."""

    drafted: tuple[int, ...]
    accepted: int
    """Number of accepted drafts."""
    token: int | None
    """The model's next token: a correction if a draft was rejected, else a bonus. None if the row
    ended inside its draft or, with gamma above 0, all of the draft was accepted."""
    confidence: tuple[float, ...] = ()
    """The drafter's confidence in each token, if the backend returns it."""


@dataclass
class Statistics:
    """Sums over rows and batches."""

    rounds: int = 0
    """Blocks verified, counted for each row."""
    tokens: int = 0
    """Tokens emitted in those rounds, end tokens included."""
    blocks: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Rounds by (drafted tokens, accepted tokens)."""
    plain_rows: int = 0
    """Rows decoded without drafting: in mode ar, or because that was faster."""
    rechecked: int = 0
    """Near-ties that were computed again, one token at a time."""
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("encode", "draft", "verify", "loop", "plain"), 0.0)
    )
    """Time by part; `loop` is the time between calls of the model, `plain` that of rows decoded
    without drafting."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user, without duplicates."""

    @property
    def tokens_per_round(self) -> float:
        """Tokens emitted per pass of the model; 1 for plain decoding."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def drafted(self) -> list[int]:
        """Number of drafts at each position of a block."""
        return self._places(lambda drafted, accepted: drafted)

    @property
    def judged(self) -> list[int]:
        """Number of drafts at each position that were judged: all before them were accepted."""
        return self._places(lambda drafted, accepted: min(drafted, accepted + 1))

    @property
    def accepted(self) -> list[int]:
        """Number of accepted drafts at each position."""
        return self._places(lambda drafted, accepted: accepted)

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of the blocks accepted up to and including position 1, 2, ..."""
        return [kept / drafted for kept, drafted in zip(self.accepted, self.drafted, strict=True)]

    @property
    def acceptance(self) -> float:
        """Share of the judged drafts that were accepted."""
        judged = sum(self.judged)
        return sum(self.accepted) / judged if judged else 0.0

    def count(self, round_: Round, emitted: int) -> None:
        """Add one round of one row that emitted so many tokens."""
        self.rounds += 1
        self.tokens += emitted
        self.blocks[len(round_.drafted), round_.accepted] += 1

    def note(self, text: str) -> None:
        """Add a note unless it is there already."""
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
        """Count the rounds that reach each position of a block."""
        longest = max((drafted for drafted, _ in self.blocks), default=0)
        return [
            sum(n for block, n in self.blocks.items() if reach(*block) > place)
            for place in range(longest)
        ]
