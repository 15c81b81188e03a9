"""What a `Translator` and a `Generator` share: results, and decoding within a token budget."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from outrider.decoding import Backend, DecodeConfig, Hypothesis, Request, decode
from outrider.decoding.request import Finish
from outrider.decoding.statistics import Round, Statistics
from outrider.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from outrider.decoding.controller import Controller
    from outrider.runtime.revision import Revision
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
    faults: tuple[str, ...] = ()
    """With `guard=True`, what is wrong with a sentence that no other decoding corrected: `loop`,
    `truncated`, `empty`, `copied`, `language`."""
    missing_terms: tuple[tuple[str, str], ...] = ()
    """With a glossary, the terms and translations that could not be put into the text."""


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
    revise: "Callable[[int, list[Hypothesis]], Revision] | None" = None
    """Returns the revision of the segment of a number, from its hypotheses; None if none is wanted.
    """

    def revisions(self, hypotheses: Sequence[list[Hypothesis]]) -> "list[Revision]":
        """Return the revisions of all segments."""
        assert self.revise is not None
        return [self.revise(number, several) for number, several in enumerate(hypotheses)]


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
        decode = partial(
            decode_in_batches,
            self.backend,
            config=config,
            batch_tokens=batch_tokens,
            controllers=self.controllers,
            stats=stats,
        )
        decoded = iter(decode([request for work in works for request in work.requests]))
        hypotheses = [[next(decoded) for _ in work.requests] for work in works]
        if any(work.revise for work in works):
            hypotheses = _revise(works, hypotheses, decode)
        return [work.join(several) for work, several in zip(works, hypotheses, strict=True)]


def _revise(
    works: Sequence[Work],
    hypotheses: Sequence[list[list[Hypothesis]]],
    decode: Callable[[Sequence[Request]], list[list[Hypothesis]]],
) -> list[list[list[Hypothesis]]]:
    """Revise the segments of all texts together."""
    from outrider.runtime.revision import advance, together

    paired = [*zip(works, hypotheses, strict=True)]
    steps = together([one for work, several in paired for one in work.revisions(several)])
    requests, revised = advance(steps, None)
    while revised is None:
        requests, revised = advance(steps, decode(requests))
    left = iter(revised)
    return [[next(left) for _ in several] for several in hypotheses]


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
