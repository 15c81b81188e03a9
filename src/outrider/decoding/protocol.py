"""Protocols between decoding and execution backends.

Decoding code never sees weights, devices or caches, so it runs on every backend; a backend never
sees a strategy. Token ids go in as lists together with a query (`queries.py`), such as argmax,
top-k, log-probabilities, sampling or acceptance of a draft. A few numbers come back as lists; the
scores stay in the processor's cache or on the GPU.

Rows are independent: the numbers of a row do not depend on which other rows are decoded with it.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from outrider.decoding.queries import Argmax, Chosen, Query

AnswerT = TypeVar("AnswerT")


class State(Protocol):
    """The model's caches of the rows in flight."""

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each row. Positions are per row."""
        ...

    def rollback(self, lengths: Sequence[int]) -> None:
        """Truncate row b to `lengths[b]` tokens, at most undoing the last extend."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Make row n the former row `rows[n]`: drop, reorder or copy rows in place."""
        ...

    def join(self, other: Self, at: Sequence[int]) -> None:
        """Move the rows of another state into this one: row n becomes row `at[n]`.

        It replaces a finished row or is appended. Both states were opened by the same backend with
        the same options. Other rows are not touched; the other state must not be used afterwards.
        """
        ...

    def repeat_rows(self, times: int) -> Self:
        """Return a state with `times` neighbouring copies of every row; the source is shared.

        Afterwards `select` must keep the `times` rows of a source together.
        """
        ...


class Candidates(NamedTuple):
    """q, the distribution that each drafted token was chosen from."""

    ids_BKC: Any
    """Candidates of every position, in the backend's array type; all other tokens have probability
    zero. Padding of shorter blocks is arbitrary."""
    prob_BKC: Any
    """Their probabilities (float32)."""


class Proposal(NamedTuple):
    """A block of drafted tokens for each row."""

    tokens: list[list[int]]
    confidence: list[list[float]] | None = None
    """Estimated chance that a token is accepted if all before it are."""
    probabilities: Candidates | None = None
    """None if the tokens are deterministic: q of each is 1."""

    def part(self, rows: list[int], tokens: int) -> "Proposal":
        """Return the first `tokens` drafts of some rows, without confidence."""
        q = self.probabilities
        return Proposal(
            [self.tokens[row][:tokens] for row in rows],
            None,
            None if q is None else Candidates(q.ids_BKC[rows, :tokens], q.prob_BKC[rows, :tokens]),
        )


class RoundOutput(NamedTuple):
    """Result of drafting and verification, by row."""

    drafted: list[list[int]]
    """The drafts that were appended."""
    best: Chosen
    """The argmax after the newest token and after each draft."""
    confidence: list[list[float]] | None
    """The drafter's confidence in each draft, if the backend returns it."""
    drafting: float
    """Seconds of drafting."""


class Drafts(Protocol):
    """A backend's drafter."""

    longest: int
    """Most tokens of one `draft`."""
    longest_text: int
    """Most tokens of a block without a prefix, by `draft` or `predict`: more than `longest` if the
    drafter was trained on whole texts."""

    def draft(
        self,
        newest: Sequence[int],
        state: State,
        tokens: Sequence[int],
        *,
        temperature: float = 1.0,
        uniform: Sequence[Sequence[float]] | None = None,
    ) -> Proposal:
        """Draft the tokens after the newest ones in one pass; the state does not change.

        Row b gets `tokens[b]` drafts, possibly 0. `newest` tokens are not in the cache yet. A draft
        is the drafter's argmax; with `uniform` (numbers in [0, 1), at least one for each draft) it
        is sampled from q at `temperature` by the inverse cumulative distribution in the order of
        the candidates.
        """
        ...

    def predict(
        self, newest: Sequence[int], state: State, known: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Fill blocks in which some tokens are known; the state does not change.

        `known` [B, K] holds the known tokens, -1 elsewhere. Returns the likeliest token of every
        position given the known ones, and its probability. A position depends only on those before
        it.
        """
        ...


@runtime_checkable
class FusedDrafts(Drafts, Protocol):
    """A drafter that drafts and verifies in one call, because a fast model idles between two."""

    def draft_and_verify(
        self,
        newest: Sequence[int],
        state: State,
        tokens: Sequence[int],
        query: Argmax,
        *,
        cached: Sequence[int],
        min_survival: float,
    ) -> RoundOutput:
        """Draft `tokens` after the newest of each row and append those worth verifying.

        First, rows are truncated to `cached` tokens, as by `rollback`. Then the newest token of
        each row is appended, and its drafts while all are accepted with a chance of at least
        `min_survival`: at least one if there are any, and none behind an end token. A backend that
        pads all rows to the widest may use the mean chance of the rows instead.
        """
        ...


class Slots(Protocol):
    """A backend's CTC decoder, which scores the slots of whole texts at once."""

    per_token: int
    """Slots per source token."""

    def fill(
        self,
        state: State,
        query: Query[AnswerT],
        known: Sequence[Sequence[int]] | None = None,
    ) -> AnswerT:
        """Answer a query about the slots of every row, [B, U]; the state does not change.

        A slot holds a token or `pad`, the blank; equal neighbours are one token. `known` holds the
        known slots, -1 elsewhere. Padding of rows with fewer than U slots is arbitrary.
        """
        ...


class Backend(Protocol):
    """Execution backend."""

    vocab_size: int
    start: int
    """Fed first to the decoder of an encoder-decoder; a language model's begin-of-text."""
    eos: int
    """The end token that is written and forced: the first of `ends`."""
    ends: tuple[int, ...]
    """Tokens that end a text."""
    pad: int
    max_length: int | None
    """Number of positions; None if unlimited."""
    epsilon: float
    """Relative rounding error of its numbers; 0 if a row's numbers are bit-identical in any batch
    and block, so that near-ties cannot differ."""
    compact_threshold: float
    """Share of finished rows from which `State.select` costs less than keeping them; 0 if selecting
    moves no memory."""

    @property
    def drafts(self) -> Drafts | None:
        """The drafter, if there is one."""
        ...

    @property
    def slots(self) -> Slots | None:
        """The CTC decoder, if there is one."""
        ...

    @property
    def device(self) -> object:
        """The device of the model."""
        ...

    def encode(
        self,
        source: Sequence[Sequence[int]],
        *,
        capacity: int | Sequence[int],
        drafting: bool = False,
        parallel: bool = False,
    ) -> State:
        """Open one row per source with capacity for so many tokens, one number for all or for each.

        Sources of a language model are empty; its prompt goes to `extend`. Drafting needs a state
        opened with `drafting`, and blocks count towards the capacity. Slots need a state opened
        with `parallel` and do not count.
        """
        ...

    def extend(
        self,
        tokens: Sequence[Sequence[int]],
        state: State,
        query: Query[AnswerT],
        *,
        last: bool = False,
    ) -> AnswerT:
        """Append tokens to every row and answer a query about the scores after each.

        Rows may get different numbers of tokens, also none; answers past a row's last token are
        undefined. With `last` the query covers only the scores after each row's last token, as a
        prefill needs.
        """
        ...

    def greedy(
        self,
        newest: Sequence[int],
        state: State,
        forbidden: Sequence[int],
        *,
        steps: int,
        ends: Collection[int],
    ) -> list[list[int]]:
        """Feed each row its newest token and append up to `steps` greedy tokens to all rows.

        Generation stops for all rows after the step in which some row produces one of `ends`. A
        backend may return a single token a row.
        """
        ...
