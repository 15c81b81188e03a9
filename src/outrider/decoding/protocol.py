"""What a decoding loop may ask of a model: `encode`, then `extend`, `draft` and so on as needed.

A loop is a pure function over these protocols. It never sees weights, devices or caches, so the
same loop runs on every backend; a backend never sees a strategy.

Rows are independent: the numbers of a row do not depend on which other rows are decoded with it.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

from torch import Tensor

__all__ = ["Backend", "Chooser", "Draft", "Ridden", "State"]


class Draft(NamedTuple):
    """A block of tokens that a drafter thinks come next, and what it thinks of them."""

    tokens_BK: Tensor
    ids_BKC: Tensor
    """Candidates of every place; the drafter gives all other tokens probability zero."""
    prob_BKC: Tensor
    """q, the distribution over the candidates that each token was chosen from (float32)."""
    confidence_BK: Tensor
    """Estimated chance that a token is confirmed if all before it are."""


class State(Protocol):
    """The rows in flight: what the model remembers of each, and how many tokens that is."""

    @property
    def length_B(self) -> Tensor:
        """Tokens each row has taken in so far (int64). Positions are per row."""
        ...

    def rollback(self, length_B: Tensor) -> None:
        """Forget the newest tokens so that row b holds `length_B[b]`; at most the last extend."""
        ...

    def select(self, row_N: Tensor) -> None:
        """Make row n what row `row_N[n]` was: drop, reorder or copy rows, in place."""
        ...

    def fan(self, beams: int) -> Self:
        """Return a state with `beams` neighbouring copies of every row; the source is shared.

        Afterwards `select` must keep groups of `beams` rows that stem from one source together.
        """
        ...


class Backend(Protocol):
    """Who computes. Token ids in, float32 logits out, both on `device`."""

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
    longest_draft: int
    """Most tokens one `draft` may ask for; 0 where there is no drafter."""
    longest_text: int
    """Most tokens that the drafter can write as one block from nothing, by `draft` or `predict`:
    more than `longest_draft` where it was trained on whole texts; 0 where there is no drafter."""
    has_ctc: bool
    """Whether it has a CTC decoder."""
    epsilon: float
    """Relative rounding error of the numbers it computes with; 0 where a row's numbers are the same
    to the bit whatever is computed with them, so that no two tokens are ever nearly tied."""

    def encode(
        self,
        source: Sequence[Sequence[int]],
        *,
        capacity: int,
        drafting: bool = False,
        parallel: bool = False,
    ) -> State:
        """Open one row per source, with room for `capacity` tokens each.

        A language model has nothing to encode: its sources are empty, its prompt goes to `extend`.
        Only a state opened for `drafting` can be drafted from; a block takes room like its tokens.
        Only a state opened for `parallel` can be asked for `ctc`, which takes no room.
        """
        ...

    def extend(
        self,
        tokens_BT: Tensor,
        state: State,
        *,
        count_B: Tensor | None = None,
        last: bool = False,
    ) -> Tensor:
        """Append tokens to every row and return the logits after each: [B, T, V], float32.

        `count_B` says how many of the T tokens of a row are real (right-padded prompts); logits
        past them mean nothing. `last` returns only the logits after each row's last real token,
        [B, 1, V], which is all a prefill needs.
        """
        ...

    def draft(
        self,
        last_B1: Tensor,
        state: State,
        tokens: int,
        *,
        temperature: float = 1.0,
        uniform_BK: Tensor | None = None,
    ) -> Draft:
        """Guess the `tokens` tokens that follow `last_B1` in one pass; the state stays as it is.

        `last_B1` are the newest tokens, not yet taken in by `extend`. Each token of a draft is the
        drafter's likeliest; with `uniform_BK` (numbers in [0, 1)) it is drawn from q instead, at
        `temperature`, by the inverse of the cumulative distribution in the order of the candidates.
        """
        ...

    def predict(self, last_B1: Tensor, state: State, known_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Guess a whole block of which some tokens are known; the state stays as it is.

        `known_BK` holds the known tokens, -1 elsewhere. Returns the likeliest token of every place
        given that the known ones stand, [B, K], and the probability the drafter gives it. A place
        depends on those before it only.
        """
        ...

    def ctc(self, state: State, known_BU: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Score the slots of whole texts, [B, U, V], and count the real slots of each row, [B].

        A slot says a token or `pad`, the blank; equal neighbours are one token (see `nn.ctc`).
        `known_BU` holds tokens that slots are given, -1 elsewhere. The state stays as it is.
        """
        ...


class Ridden(NamedTuple):
    """What one call of `Chooser.ride` brought, row by row."""

    drafted: list[list[int]]
    """The drafts that were appended."""
    best: list[list[int]]
    """The likeliest token after the newest one, and after each draft."""
    drafting: float
    """Seconds that drafting took."""


class Chooser(Protocol):
    """A backend that can say which token is the likeliest without handing out all logits.

    A loop that wants nothing else asks for it, if the backend has it: for a fast model, scores of
    thousands of words take longer to hand over and to look through than to compute. For the same
    reason it takes and returns lists: a handful of numbers is sooner read from those.
    """

    def likeliest(
        self, tokens: Sequence[Sequence[int]], state: State, forbidden: Sequence[int]
    ) -> list[list[int]]:
        """Append tokens [B, T] to every row; return the likeliest token after each, [B, T].

        Of equals it is the first; `forbidden` tokens are never named.
        """
        ...

    def ride(
        self,
        newest: Sequence[int],
        state: State,
        tokens: int,
        *,
        held: Sequence[int],
        worth: float,
        forbidden: Sequence[int],
    ) -> Ridden:
        """Draft `tokens` tokens after the newest ones and append what is worth checking.

        First, rows forget what they hold beyond `held` tokens, as by `rollback`. What is appended
        is the newest token of each row and then the drafts up to where, in the mean over
        rows, all hold with a chance of `worth`, at least one; never any behind an end token. The
        next step of a loop depends on nothing else, and between two calls a fast model waits.
        """
        ...
