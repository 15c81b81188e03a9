"""Near-ties, computed again exactly as greedy decoding of that row alone computes them.

A block of tokens and one token at a time add up the same numbers in another order. Where the best
two tokens lie closer together than that rounding, the order could decide. Such a row is fed once
more by itself, one token at a time, up to the tie. What was computed is kept, so that the next tie
of the row goes on from there: no token is fed more than twice.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from outrider.decoding.protocol import Backend, State
from outrider.decoding.queries import Argmax, Chosen, Nothing
from outrider.decoding.request import Row, TokenMask
from outrider.decoding.statistics import Statistics

__all__ = ["FINE", "Replay", "closeness"]

FINE = 1e-6
"""Numbers that round no more coarsely than this have so few near-ties that all are settled."""
STRICT, STRICT_FINE = 8, 32
"""Two tokens are nearly tied when their logits differ by less than so many rounding errors of the
larger. Between blocks and single tokens a trained model of six layers differed by up to 1.8 of them
in bfloat16, and by up to 10 in float32, where one token in 235,597 of a test set was such a tie."""


def closeness(backend: Backend) -> float:
    """Return by which share of the largest score another may be wrong."""
    return backend.epsilon * (STRICT_FINE if backend.epsilon <= FINE else STRICT)


class Replay:
    """Settles the near-ties of greedy decoding.

    What comes out is then the text of each row alone, whichever way the others were computed.
    """

    def __init__(self, backend: Backend, mask: TokenMask, stats: Statistics) -> None:
        self.backend, self.stats = backend, stats
        self._mask = mask
        self._alone: WeakKeyDictionary[Row, tuple[State, int, int]] = WeakKeyDictionary()
        """Rows fed by themselves, how many tokens of their text they were fed, and what follows."""

    def settle(self, rows: Sequence[Row], drafted: Sequence[Sequence[int]], chosen: Chosen) -> None:
        """Correct the likeliest tokens at every near-tie that is reached."""
        assert chosen.near is not None
        for row, guesses, wanted, ties in zip(
            rows, drafted, chosen.tokens, chosen.near, strict=True
        ):
            if any(ties) and not row.done:
                self._settle_row(row, guesses, wanted, ties)

    def _settle_row(
        self, row: Row, guesses: Sequence[int], wanted: list[int], ties: Sequence[bool]
    ) -> None:
        for place in range(min(len(guesses) + 1, row.room)):
            if ties[place]:
                wanted[place] = self._next(row, [*row.tokens, *guesses[:place]])
                self.stats.rechecked += 1
            refused = place == len(guesses) or guesses[place] != wanted[place]
            if refused or wanted[place] in row.ends:
                break

    def _next(self, row: Row, text: Sequence[int]) -> int:
        """Return what greedy decoding of this row alone says after `text`."""
        backend = self.backend
        state, fed, token = self._alone.get(row, (None, -1, -1))
        for count in range(fed + 1, len(text) + 1):
            if state is None:
                *before, newest = row.request.opening(backend)
                room = len(row.request.prompt) + row.limit
                state = backend.encode([row.request.source], capacity=[room])
                if before:
                    backend.extend([before], state, Nothing(), last=True)
            else:
                newest = text[count - 1]
            chosen = backend.extend([[newest]], state, Argmax(self._mask.after([count])))
            ((token,),) = chosen.tokens
        assert state is not None
        self._alone[row] = state, len(text), token
        return token
