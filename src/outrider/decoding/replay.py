"""Computes near-ties again exactly as greedy decoding of that row alone does.

A block and single tokens add the same numbers in different orders. If the two best scores differ by
less than that rounding, the order can change the argmax. Such a row is fed again alone, one token
at a time, up to the tie. Its state is kept for the row's next tie, so no token is fed more than
twice.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from outrider.decoding.protocol import Backend, State
from outrider.decoding.queries import Argmax, Chosen, Nothing
from outrider.decoding.request import FINE, Row, TokenMask
from outrider.decoding.statistics import Statistics

STRICT, STRICT_FINE = 8, 32
"""Two tokens are nearly tied if their logits differ by less than this many rounding errors of the
larger. Between blocks and single tokens a trained model of six layers differed by up to 1.8 in
bfloat16, and by up to 10 in float32, where one token in 235,597 of a test set was such a tie."""


def tie_margin(backend: Backend) -> float:
    """Return the margin of near-ties as a share of the largest score."""
    return backend.epsilon * (STRICT_FINE if backend.epsilon <= FINE else STRICT)


class Replay:
    """Resolves the near-ties of greedy decoding, so that each row gets the text it has alone."""

    def __init__(self, backend: Backend, mask: TokenMask, stats: Statistics) -> None:
        self.backend, self.stats = backend, stats
        self._mask = mask
        self._alone: WeakKeyDictionary[Row, tuple[State, int, int]] = WeakKeyDictionary()
        """States of rows fed alone, the tokens of their text fed, and the next token."""

    def resolve(
        self, rows: Sequence[Row], drafted: Sequence[Sequence[int]], chosen: Chosen
    ) -> None:
        """Correct the chosen tokens at every near-tie up to the first rejected draft."""
        assert chosen.near is not None
        for row, guesses, best, ties in zip(rows, drafted, chosen.tokens, chosen.near, strict=True):
            if any(ties) and not row.done:
                self._resolve_row(row, guesses, best, ties)

    def _resolve_row(
        self, row: Row, guesses: Sequence[int], best: list[int], ties: Sequence[bool]
    ) -> None:
        for place in range(min(len(guesses) + 1, row.remaining)):
            if ties[place]:
                best[place] = self._next(row, [*row.tokens, *guesses[:place]])
                self.stats.rechecked += 1
            rejected = place == len(guesses) or guesses[place] != best[place]
            if rejected or best[place] in row.ends:
                break

    def _next(self, row: Row, text: Sequence[int]) -> int:
        """Return the token that greedy decoding of this row alone produces after `text`."""
        backend = self.backend
        state, fed, token = self._alone.get(row, (None, -1, -1))
        for count in range(fed + 1, len(text) + 1):
            if state is None:
                *before, newest = row.request.opening(backend)
                capacity = len(row.request.prompt) + row.limit
                state = backend.encode([row.request.source], capacity=[capacity])
                if before:
                    backend.extend([before], state, Nothing(), last=True)
            else:
                newest = text[count - 1]
            chosen = backend.extend([[newest]], state, Argmax(self._mask.after([count])))
            ((token,),) = chosen.tokens
        assert state is not None
        self._alone[row] = state, len(text), token
        return token
