"""What a loaded model answers when asked for more than the text."""

from dataclasses import dataclass

from outrider.decoding.request import Finish

__all__ = ["Result"]


@dataclass(frozen=True)
class Result:
    """One translation or continuation."""

    text: str
    score: float | None = None
    """Sum over its sentences of their scores; None for greedy and sampled text unless `scores`."""
    finish: Finish = "eos"
    """`length` if any part of it ran into its token limit."""
