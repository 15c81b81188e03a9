"""One round of tandem decoding in two calls, for backends that do not do it in one."""

from collections.abc import Collection, Sequence
from itertools import accumulate, zip_longest
from operator import mul
from time import perf_counter

from outrider.decoding.protocol import Backend, Drafts, RoundOutput, State
from outrider.decoding.questions import Likeliest
from outrider.decoding.request import up_to_end

__all__ = ["draft_and_verify", "worth_checking"]


def draft_and_verify(
    backend: Backend,
    drafts: Drafts,
    newest: Sequence[int],
    state: State,
    tokens: Sequence[int],
    ask: Likeliest,
    *,
    held: Sequence[int],
    min_survival: float,
) -> RoundOutput:
    """Do what `Drafts.draft_and_verify` says."""
    if list(held) != state.lengths:
        state.rollback(held)
    started = perf_counter()
    draft = drafts.draft(newest, state, tokens)
    drafting = perf_counter() - started
    kept = worth_checking(
        draft.tokens, draft.confidence, min_survival=min_survival, ends=backend.ends
    )
    drafted = [guesses[:kept] for guesses in draft.tokens]
    confidence = [sure[:kept] for sure in draft.confidence]
    fed = [[token, *guesses] for token, guesses in zip(newest, drafted, strict=True)]
    return RoundOutput(drafted, backend.extend(fed, state, ask), confidence, drafting)


def worth_checking(
    drafted: Sequence[Sequence[int]],
    confidence: Sequence[Sequence[float]],
    *,
    min_survival: float,
    ends: Collection[int],
) -> int:
    """Return how many drafts of each row to verify, at least one.

    They are those up to which, in the mean over rows that have any, all hold with a chance of
    `min_survival`. Nothing is said behind an end token, so nothing holds there, nor where a row has
    no more drafts.
    """
    products = [
        [*accumulate(sure[: up_to_end(guesses, ends)], mul)]
        for guesses, sure in zip(drafted, confidence, strict=True)
        if guesses
    ]
    columns = zip_longest(*products, fillvalue=0.0)
    chances = [sum(column) / len(products) for column in columns]
    return sum(chance > 0 and chance >= min_survival for chance in chances) or 1
