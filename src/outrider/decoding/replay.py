"""Near-ties, computed again exactly as greedy decoding of that row alone computes them.

A block of tokens and one token at a time add up the same numbers in another order. Where the best
two tokens lie closer together than that rounding, the order could decide. Such a row is fed once
more by itself, one token at a time, up to the tie. What was computed is kept, so that the next tie
of the row goes on from there: no token is fed more than twice.
"""

from collections.abc import Sequence

from outrider.decoding.config import DecodeConfig
from outrider.decoding.mask import TokenMask
from outrider.decoding.prefill import open_rows
from outrider.decoding.protocol import Backend, State
from outrider.decoding.questions import Chosen, Likeliest
from outrider.decoding.request import Hypothesis, Request, token_limit
from outrider.decoding.row import Row
from outrider.decoding.statistics import Statistics
from outrider.decoding.stepwise import decode_stepwise

__all__ = ["FINE", "Replay", "closeness", "settled_greedy"]

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

    def __init__(self, backend: Backend, config: DecodeConfig, stats: Statistics) -> None:
        self.backend = backend
        self.config = config
        self.stats = stats
        self._mask = TokenMask(config, ends=backend.ends)
        self._alone: dict[int, tuple[State, int, int]] = {}
        """Rows fed by themselves, how many tokens of their text they were fed, and what follows."""

    def settle(
        self, rows: Sequence[Row], drafted: Sequence[Sequence[int]], chosen: Chosen
    ) -> list[list[int]]:
        """Return the likeliest tokens, corrected at every near-tie that is reached."""
        assert chosen.near is not None
        for row, guesses, wanted, ties in zip(
            rows, drafted, chosen.tokens, chosen.near, strict=True
        ):
            if any(ties) and not row.done:
                self._settle_row(row, guesses, wanted, ties)
        return chosen.tokens

    def _settle_row(
        self, row: Row, guesses: Sequence[int], wanted: list[int], ties: Sequence[bool]
    ) -> None:
        for place in range(min(len(ties), row.room)):
            if ties[place]:
                wanted[place] = self._next(row, [*row.tokens, *guesses[:place]])
                self.stats.rechecked += 1
            refused = place == len(guesses) or guesses[place] != wanted[place]
            if refused or wanted[place] in self.backend.ends:
                break

    def _next(self, row: Row, text: Sequence[int]) -> int:
        """Return what greedy decoding of this row alone says after `text`."""
        start = [self.backend.start, *row.request.prompt]
        state, fed, token = self._alone.get(row.index, (None, -1, -1))
        for count in range(fed + 1, len(text) + 1):
            ask = Likeliest(self._mask.after([count]))
            if state is None:
                state = open_rows(self.backend, [row.request], [row.limit])
                chosen = self.backend.extend([start], state, ask, last=True)
            else:
                chosen = self.backend.extend([[text[count - 1]]], state, ask)
            ((token,),) = chosen.tokens
        assert state is not None
        self._alone[row.index] = state, len(text), token
        return token


def settled_greedy(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig, stats: Statistics
) -> list[Hypothesis]:
    """Decode greedily, one token at a time; near-ties as each row alone decides them."""
    replay, mask = Replay(backend, config, stats), TokenMask(config, ends=backend.ends)
    near = closeness(backend)
    texts = [
        Row(n, request, token_limit(backend, request, config), newest=backend.start, held=0)
        for n, request in enumerate(requests)
    ]

    def ask(rows: Sequence[int], step: int) -> Likeliest:
        return Likeliest(mask.after([step] * len(rows)), config.scores, near)

    def settle(rows: Sequence[int], chosen: Chosen) -> list[int]:
        waiting = [texts[row] for row in rows]
        best = replay.settle(waiting, [[]] * len(rows), chosen)
        for text, (token,) in zip(waiting, best, strict=True):
            if not text.done:
                text.take([], 0, token, ends=backend.ends)
        return [token for (token,) in best]

    return decode_stepwise(backend, requests, config, ask, settle=settle)
