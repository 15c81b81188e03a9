"""What a loaded model answers when asked for more than the text."""

from dataclasses import dataclass, field

from outrider.decoding.request import Finish
from outrider.decoding.statistics import Round

__all__ = ["Result"]


@dataclass(frozen=True)
class Result:
    """One translation or continuation."""

    text: str
    score: float | None = None
    """Sum over its sentences of their scores; None for greedy and sampled text unless `scores`."""
    finish: Finish = "eos"
    """`length` if any part of it ran into its token limit."""
    tokens: tuple[int, ...] = field(default=(), repr=False, compare=False)
    """The tokens of the text, without end tokens."""
    rounds: tuple[Round, ...] = field(default=(), repr=False, compare=False)
    """What was drafted and what became of it, in the order of the text; empty unless in tandem."""
