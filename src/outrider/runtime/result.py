"""What a `Translator` and a `Generator` share: results, and decoding within a token budget."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outrider.decoding import Backend, DecodeConfig, Hypothesis, Request, decode
from outrider.decoding.request import Finish
from outrider.decoding.statistics import Round, Statistics
from outrider.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from outrider.decoding.controller import Controller
    from outrider.text.alignment import Alignment


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
    alignment: "Alignment | None" = field(default=None, repr=False, compare=False)
    """With `alignment=True`, which source characters became which of `text`."""


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
    gaps: Sequence[str] = ()
    """White space between the segments of a text."""


class LoadedModel:
    """The parts of a loaded model."""

    def __init__(
        self, backend: Backend, tokenizer: Tokenizer, defaults: Mapping[str, Any] | None
    ) -> None:
        self.backend, self.tokenizer = backend, tokenizer
        self.defaults = dict(defaults or {})
        """Decode options of the model."""
        self.controllers: dict[str, Controller] = {}
        """By draft source; they choose whether to draft and how much, from earlier times."""

    def decode(
        self,
        works: Sequence[Work],
        config: DecodeConfig,
        batch_tokens: int,
        stats: Statistics | None,
    ) -> list[list[Result]]:
        """Decode the requests of all texts and join their hypotheses."""
        hypotheses = iter(
            decode_in_batches(
                self.backend,
                [request for work in works for request in work.requests],
                config,
                batch_tokens=batch_tokens,
                controllers=self.controllers,
                stats=stats,
            )
        )
        return [work.join([next(hypotheses) for _ in work.requests]) for work in works]


def decode_in_batches(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeConfig,
    *,
    batch_tokens: int,
    controllers: "dict[str, Controller] | None" = None,
    stats: Statistics | None = None,
) -> list[list[Hypothesis]]:
    """Decode any number of requests with bounded memory; results in the order of the requests."""
    requests = [request.sized(backend, config) for request in requests]
    cost = [request.needs[1] for request in requests]
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
            controllers=controllers,
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
