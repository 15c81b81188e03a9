"""Draft sources: where the tokens come from that tandem decoding verifies.

A source is a module with a class `Source`; its name is a value of the option `draft`.
"""

from collections.abc import Collection, Sequence
from importlib import import_module
from itertools import accumulate, zip_longest
from operator import mul
from time import perf_counter
from typing import NamedTuple

from outrider.decoding.protocol import Backend, Proposal, RoundOutput, State
from outrider.decoding.queries import Argmax
from outrider.decoding.request import Row, up_to_end


class History(NamedTuple):
    """The tokens of a row."""

    source: Sequence[int]
    """The source text in target tokens and the order of generation, or a language model's prompt;
    empty if unknown."""
    target: Sequence[int]
    """The decoder's tokens: its start token, a prompt and the text so far."""


class DraftSource:
    """Base of draft sources. An object serves one batch."""

    drafting = False
    """Whether rows are opened with the caches of the backend's drafter."""
    state: State
    """The batch's state in the backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def propose(self, histories: Sequence[History], counts: Sequence[int]) -> Proposal:
        """Return up to `counts[n]` tokens that may follow history n, possibly none."""
        raise NotImplementedError

    def draft(
        self,
        rows: Sequence[Row],
        counts: Sequence[int],
        temperature: float = 1.0,
        uniform: Sequence[Sequence[float]] = (),
    ) -> Proposal:
        """Draft for rows.

        A source with probabilities samples with the numbers of `uniform` at `temperature`, if there
        are any.
        """
        histories = [
            History(
                row.request.text or row.request.prompt,
                [*row.request.opening(self.backend), *row.tokens],
            )
            for row in rows
        ]
        return self.propose(histories, counts)

    def draft_and_verify(
        self, rows: Sequence[Row], counts: Sequence[int], query: Argmax, min_survival: float
    ) -> RoundOutput:
        """Draft, and append the drafts worth verifying after each row's last token."""
        cached = [row.cached for row in rows]
        if cached != self.state.lengths:
            self.state.rollback(cached)
        started = perf_counter()
        drafted, confidence, _ = self.draft(rows, counts)
        drafting = perf_counter() - started
        if confidence is not None:
            kept = worth_verifying(
                drafted, confidence, min_survival=min_survival, ends=self.backend.ends
            )
            drafted = [tokens[:kept] for tokens in drafted]
            confidence = [chances[:kept] for chances in confidence]
        fed = [[row.last, *tokens] for row, tokens in zip(rows, drafted, strict=True)]
        best = self.backend.extend(fed, self.state, query)
        return RoundOutput(drafted, best, confidence, drafting)


def load_source(name: str, backend: Backend) -> DraftSource:
    """Return the draft source of this name for a model."""
    source: DraftSource = import_module(f"{__name__}.{name}").Source(backend)
    return source


def worth_verifying(
    drafted: Sequence[Sequence[int]],
    confidence: Sequence[Sequence[float]],
    *,
    min_survival: float,
    ends: Collection[int],
) -> int:
    """Return how many drafts of each row to verify, at least one.

    All drafts up to there are accepted with a chance of at least `min_survival` in the mean over
    the rows with drafts; the chance is 0 behind an end token and behind a row's last draft.
    """
    products = [
        [*accumulate(row[: up_to_end(guesses, ends)], mul)]
        for guesses, row in zip(drafted, confidence, strict=True)
        if guesses
    ]
    columns = zip_longest(*products, fillvalue=0.0)
    chances = [sum(column) / len(products) for column in columns]
    return sum(chance > 0 and chance >= min_survival for chance in chances) or 1
