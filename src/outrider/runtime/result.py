"""What a loaded model answers when asked for more than the text.

A text on its way through a session: what is decoded for it, and how that becomes a text.

Requests of mixed lengths, decoded in batches that hold no more than a set number of tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from outrider.decoding import Backend, Controller, DecodeSettings, Hypothesis, Request, decode
from outrider.decoding.request import Finish, needs
from outrider.decoding.statistics import Round, Statistics

__all__ = ["Result", "Work", "decode_in_batches", "format_results", "plan"]


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


@dataclass(frozen=True)
class Work:
    """One text, taken apart by a `Translator` or a `Generator`."""

    requests: list[Request]
    """One for every piece of the text, in order."""
    join: Callable[[Sequence[list[Hypothesis]]], list[Result]]
    """Makes the text, and its alternatives, of what the pieces came to; given only the first few,
    it makes the beginning of the text."""


def decode_in_batches(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeSettings,
    *,
    batch_tokens: int,
    controller: Controller | None = None,
    stats: Statistics | None = None,
) -> list[list[Hypothesis]]:
    """Decode any number of requests with bounded memory; results in the order of the requests."""
    cost = [needs(backend, request, config)[1] for request in requests]
    # Where rows are padded, each takes as much as the dearest: those of like cost go together.
    # Elsewhere each takes its own, and whoever is done makes room for the next.
    dearest_first = sorted(range(len(cost)), key=lambda row: -cost[row])
    groups = plan(cost, batch_tokens) if backend.compact_threshold else [dearest_first]
    results: list[list[Hypothesis]] = [[] for _ in requests]
    for rows in groups:
        found = decode(
            backend,
            [requests[row] for row in rows],
            config,
            tokens=batch_tokens,
            controller=controller,
            stats=stats,
        )
        for row, hypotheses in zip(rows, found, strict=True):
            results[row] = hypotheses
    return results


def plan(cost: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Group rows of similar cost, dearest first, so that rows x dearest stays within the budget.

    A row that alone exceeds the budget gets a batch of its own.
    """
    order = sorted(range(len(cost)), key=lambda row: -cost[row])
    start = 0
    while start < len(order):
        rows = max(1, budget // max(1, cost[order[start]]))
        yield order[start : start + rows]
        start += rows
