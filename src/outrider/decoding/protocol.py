"""What a decoding loop may ask of a model.

A loop is a pure function over these protocols. It never sees weights, devices or caches, so the
same loop runs on every backend; a backend never sees a strategy.

Token ids go in as lists, and a question goes with them (`questions.py`): which token is likeliest,
which are the best n, how likely are these, draw one with these numbers, accept this draft by this
rule. A few numbers come back as lists. The scores themselves, thousands for every token, stay where
they were computed: in a cache of the processor, on a GPU.

Rows are independent: the numbers of a row do not depend on which other rows are decoded with it.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from outrider.decoding.queries import Argmax, Chosen, Query

__all__ = ["Backend", "Draft", "Drafts", "RoundOutput", "Slots", "State"]

AnswerT = TypeVar("AnswerT")


class State(Protocol):
    """The rows in flight: what the model remembers of each, and how many tokens that is."""

    @property
    def lengths(self) -> list[int]:
        """Tokens each row has taken in so far. Positions are per row."""
        ...

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget the newest tokens so that row b holds `lengths[b]`; at most the last extend."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Make row n what row `rows[n]` was: drop, reorder or copy rows, in place."""
        ...

    def join(self, other: Self, at: Sequence[int]) -> None:
        """Take over the rows of another state, which is used up: row n becomes row `at[n]` here.

        It takes the place of a row that was left, or comes behind the last. Both states were opened
        for the same things by the same backend. What the other rows hold is not touched.
        """
        ...

    def repeat_rows(self, times: int) -> Self:
        """Return a state with `times` neighbouring copies of every row; the source is shared.

        Afterwards `select` must keep groups of `times` rows that stem from one source together.
        """
        ...


class Draft(NamedTuple):
    """Tokens that a drafter thinks come next, and what it thinks of them: a block for each row."""

    tokens: list[list[int]]
    confidence: list[list[float]]
    """Estimated chance that a token is confirmed if all before it are."""
    ids_BKC: Any
    """Candidates of every place, as an array of the backend's own kind, for it to look at when a
    question names this draft; all other tokens have probability zero. Shorter blocks are filled up
    with anything."""
    prob_BKC: Any
    """q, the distribution over the candidates that each token was chosen from (float32)."""

    def part(self, rows: list[int], tokens: int) -> "Draft":
        """Return the first `tokens` of the drafts of some rows."""
        return Draft(
            [self.tokens[row][:tokens] for row in rows],
            [self.confidence[row][:tokens] for row in rows],
            self.ids_BKC[rows, :tokens],
            self.prob_BKC[rows, :tokens],
        )


class RoundOutput(NamedTuple):
    """What one call of `Drafts.draft_and_verify` brought, row by row."""

    drafted: list[list[int]]
    """The drafts that were appended."""
    best: Chosen
    """What is likeliest after the newest token, and after each draft."""
    confidence: list[list[float]] | None
    """How sure the drafter was of each, where the backend tells."""
    drafting: float
    """Seconds that drafting took."""


class Drafts(Protocol):
    """A backend's drafter."""

    longest: int
    """Most tokens one `draft` may ask for."""
    longest_text: int
    """Most tokens that it can write as one block from nothing, by `draft` or `predict`: more than
    `longest` where it was trained on whole texts."""

    def draft(
        self,
        newest: Sequence[int],
        state: State,
        tokens: Sequence[int],
        *,
        temperature: float = 1.0,
        uniform: Sequence[Sequence[float]] | None = None,
    ) -> Draft:
        """Guess the tokens that follow the newest ones in one pass; the state stays.

        Row b gets `tokens[b]` of them, none for some. `newest` are not yet taken in by `extend`.
        Each token of a draft is the drafter's likeliest; with `uniform` (numbers in [0, 1), one for
        each token at least) it is drawn from q instead, at `temperature`, by the inverse of the
        cumulative distribution in the order of the candidates.
        """
        ...

    def predict(
        self, newest: Sequence[int], state: State, known: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Guess whole blocks of which some tokens are known; the state stays as it is.

        `known` [B, K] holds the known tokens, -1 elsewhere. Returns the likeliest token of every
        place given that the known ones stand, and the probability the drafter gives it. A place
        depends on those before it only.
        """
        ...

    def draft_and_verify(
        self,
        newest: Sequence[int],
        state: State,
        tokens: Sequence[int],
        ask: Argmax,
        *,
        held: Sequence[int],
        min_survival: float,
    ) -> RoundOutput:
        """Draft so many tokens after the newest of each row, and append what is worth checking.

        First, rows forget what they hold beyond `held` tokens, as by `rollback`. What is appended
        is the newest token of each row and then its drafts up to where all hold with a chance of
        `min_survival`, at least one if there are any, and none behind an end token. A backend that
        computes all rows as wide as the widest may use the mean chance of the rows instead.

        One call, because the next step of a loop depends on nothing else, and between two calls a
        fast model waits.
        """
        ...


class Slots(Protocol):
    """A backend's CTC decoder: it scores the slots of whole texts at once."""

    per_token: int
    """Slots for each token of the source."""

    def fill(
        self,
        state: State,
        ask: Query[AnswerT],
        known: Sequence[Sequence[int]] | None = None,
    ) -> AnswerT:
        """Answer a question about the slots of every row, [B, U]; the state stays as it is.

        A slot says a token or `pad`, the blank; equal neighbours are one token. `known` holds what
        slots are told, -1 elsewhere. Rows with fewer slots than U are filled up with anything.
        """
        ...


class Backend(Protocol):
    """Who computes."""

    vocab_size: int
    start: int
    """Fed first to the decoder of an encoder-decoder; a language model's begin-of-text."""
    eos: int
    """The end token that is written and forced: the first of `ends`."""
    ends: tuple[int, ...]
    """Tokens that end a text."""
    pad: int
    max_length: int | None
    """Positions the model can count to; None where there is no such limit."""
    epsilon: float
    """Relative rounding error of the numbers it computes with; 0 where a row's numbers are the same
    to the bit whatever is computed with them, so that no two tokens are ever nearly tied."""
    compact_threshold: float
    """Share of the rows of a state that are better carried along, once they are done, than to move
    the memory of all others by `State.select`; 0 where that moves nothing."""

    @property
    def drafts(self) -> Drafts | None:
        """Its drafter, if it has one."""
        ...

    @property
    def slots(self) -> Slots | None:
        """Its CTC decoder, if it has one."""
        ...

    @property
    def device(self) -> object:
        """Where it computes."""
        ...

    def encode(
        self,
        source: Sequence[Sequence[int]],
        *,
        capacity: int | Sequence[int],
        drafting: bool = False,
        parallel: bool = False,
    ) -> State:
        """Open one row per source, with room for `capacity` tokens: one number for all, or each.

        A language model has nothing to encode: its sources are empty, its prompt goes to `extend`.
        Only a state opened for `drafting` can be drafted from; a block takes room like its tokens.
        Only a state opened for `parallel` has slots to fill, which take no room.
        """
        ...

    def extend(
        self,
        tokens: Sequence[Sequence[int]],
        state: State,
        ask: Query[AnswerT],
        *,
        last: bool = False,
    ) -> AnswerT:
        """Append tokens to every row and answer a question about what comes after each.

        Rows may be given differently many tokens; answers past a row's last token mean nothing. A
        row that is given none is left as it is.
        `last` asks only about what comes after the last token of each row, which is all a prefill
        needs.
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
        """Feed each row its newest token, and let all say the likeliest that follow.

        So many of them, or fewer: none behind a place where some row says one of `ends`. A fast
        model waits between two calls; one that does not may say a single token a row.
        """
        ...
