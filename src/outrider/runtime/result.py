"""What a loaded model answers when asked for more than the text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.decoding.request import Finish
from outrider.decoding.statistics import Round

__all__ = ["Result", "format_results"]


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
    """What was drafted and what became of it, as it was written; empty unless in tandem."""


def format_results(results: Sequence[Result], line: int, *, n_best: int) -> str:
    """Write what became of one line: its translation, or `line ||| text ||| score` for several."""
    texts = [result.text.replace("\n", " ") for result in results]
    if n_best == 1:
        return texts[0] + "\n"
    rows = zip(texts, results, strict=True)
    return "".join(f"{line} ||| {text} ||| {result.score:.4f}\n" for text, result in rows)
