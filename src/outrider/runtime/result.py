"""Results of a loaded model, and decoding of many requests within a token budget."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider.decoding import Backend, DecodeSettings, Hypothesis, Request, decode
from outrider.decoding.request import Finish, needs
from outrider.decoding.statistics import Round, Statistics

if TYPE_CHECKING:
    from outrider.decoding.controller import Controller


@dataclass(frozen=True)
class Result:
    """One translation or continuation."""

    text: str
    score: float | None = None
    """Sum of the scores of its sentences; None for greedy and sampled text unless `scores`."""
    finish: Finish = "eos"
    """`length` if any sentence reached its token limit."""
    tokens: tuple[int, ...] = field(default=(), repr=False, compare=False)
    """The tokens of the text, without end tokens."""
    rounds: tuple[Round, ...] = field(default=(), repr=False, compare=False)
    """Rounds of tandem decoding; empty in other modes."""


def format_results(results: Sequence[Result], line: int, *, n_best: int) -> str:
    """Format the results of one line: its translation, or `line ||| text ||| score` for several."""
    texts = [result.text.replace("\n", " ") for result in results]
    if n_best == 1:
        return texts[0] + "\n"
    rows = zip(texts, results, strict=True)
    return "".join(f"{line} ||| {text} ||| {result.score:.4f}\n" for text, result in rows)


@dataclass(frozen=True)
class Work:
    """One text as requests of a `Translator` or a `Generator`."""

    requests: list[Request]
    """One for each segment of the text, in order."""
    join: Callable[[Sequence[list[Hypothesis]]], list[Result]]
    """Joins the hypotheses of all segments, or of the first few, to texts, best first."""


def decode_in_batches(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeSettings,
    *,
    batch_tokens: int,
    controller: "Controller | None" = None,
    stats: Statistics | None = None,
) -> list[list[Hypothesis]]:
    """Decode any number of requests with bounded memory; results in the order of the requests."""
    cost = [needs(backend, request, config)[1] for request in requests]
    # Padded rows cost as much as the largest one, so requests of similar cost are grouped.
    # Without padding all go to one session, which replaces finished rows.
    dearest_first = sorted(range(len(cost)), key=lambda row: -cost[row])
    groups = plan(cost, batch_tokens) if backend.compact_threshold else [dearest_first]
    results: list[list[Hypothesis]] = [[] for _ in requests]
    for rows in groups:
        decoded = decode(
            backend,
            [requests[row] for row in rows],
            config,
            tokens=batch_tokens,
            controller=controller,
            stats=stats,
        )
        for row, hypotheses in zip(rows, decoded, strict=True):
            results[row] = hypotheses
    return results


def plan(cost: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Group rows of similar cost, largest first, so that rows x largest is within the budget.

    A row larger than the budget gets its own group.
    """
    order = sorted(range(len(cost)), key=lambda row: -cost[row])
    start = 0
    while start < len(order):
        rows = max(1, budget // max(1, cost[order[start]]))
        yield order[start : start + rows]
        start += rows
