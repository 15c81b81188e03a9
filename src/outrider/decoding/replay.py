"""Near-ties, computed again exactly as greedy decoding of that row alone computes them.

A block of tokens and one token at a time add up the same numbers in another order. Where the best
two tokens lie closer together than that rounding, the order could decide. Such a row is fed once
more by itself, one token at a time, up to the tie. What was computed is kept, so that the next tie
of the row goes on from there: no token is fed more than twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.decoding.config import DecodeConfig
from outrider.decoding.ids import to_ids
from outrider.decoding.likeliest import likeliest
from outrider.decoding.mask import TokenMask
from outrider.decoding.prefill import prefill
from outrider.decoding.protocol import Backend, State
from outrider.decoding.request import Hypothesis, Request, token_limit
from outrider.decoding.row import Row
from outrider.decoding.statistics import Statistics
from outrider.decoding.stepwise import decode_stepwise

__all__ = ["FINE", "Replay", "settled_greedy"]

FINE = 1e-6
"""Numbers that round no more coarsely than this have so few near-ties that all are settled."""
STRICT, STRICT_FINE = 8, 32
"""Two tokens are nearly tied when their logits differ by less than so many rounding errors of the
larger. Between blocks and single tokens a trained model of six layers differed by up to 1.8 of them
in bfloat16, and by up to 10 in float32, where one token in 235,597 of a test set was such a tie."""


@dataclass
class Walk:
    """One row fed alone, and the logits after what it was fed."""

    state: State
    logits_11V: Tensor
    fed: int = 0
    """Tokens of its text that it was fed."""


class Replay:
    """Settles the near-ties of greedy decoding.

    What comes out is then the text of each row alone, whichever way the others were computed.
    """

    def __init__(self, backend: Backend, config: DecodeConfig, stats: Statistics) -> None:
        self.backend = backend
        self.config = config
        self.stats = stats
        self._walks: dict[int, Walk] = {}

    def settle(
        self,
        rows: Sequence[Row],
        drafted: Sequence[Sequence[int]],
        best_BT: Tensor,
        logits_BTV: Tensor,
    ) -> list[list[int]]:
        """Return the likeliest tokens, corrected at every near-tie that is reached."""
        best, near = best_BT.tolist(), self._near(best_BT, logits_BTV).tolist()
        for row, guesses, wanted, ties in zip(rows, drafted, best, near, strict=True):
            if any(ties) and not row.done:
                self._settle_row(row, guesses, wanted, ties)
        return best

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

    def _near(self, best_BT: Tensor, logits_BTV: Tensor) -> Tensor:
        epsilon = self.backend.epsilon
        top_BT1 = logits_BTV.gather(-1, best_BT[..., None])
        margin_BT1 = top_BT1.abs().clamp(min=1) * epsilon
        margin_BT1 *= STRICT_FINE if epsilon <= FINE else STRICT
        return (logits_BTV > top_BT1 - margin_BT1).sum(-1) > 1

    def _next(self, row: Row, text: Sequence[int]) -> int:
        """Return what greedy decoding of this row alone says after `text`."""
        walk = self._walks.get(row.index)
        if walk is None:
            walk = self._walks[row.index] = Walk(*prefill(self.backend, [row.request], [row.limit]))
        for token in text[walk.fed :]:
            token_11 = torch.tensor([[token]], device=walk.logits_11V.device)
            walk.logits_11V = self.backend.extend(token_11, walk.state)
        walk.fed = len(text)
        TokenMask(self.config, ends=self.backend.ends)(walk.logits_11V, len(text))
        return int(likeliest(walk.logits_11V).item())


def settled_greedy(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig, stats: Statistics
) -> list[Hypothesis]:
    """Decode greedily, one token at a time; near-ties as each row alone decides them."""
    replay = Replay(backend, config, stats)
    texts = [
        Row(n, request, token_limit(backend, request, config), newest=backend.start, held=0)
        for n, request in enumerate(requests)
    ]

    def choose(logits_B1V: Tensor, rows: Sequence[int], step: int) -> Tensor:
        chosen = [texts[row] for row in rows]
        best_B1 = likeliest(logits_B1V)
        best = replay.settle(chosen, [[]] * len(rows), best_B1, logits_B1V)
        for text, (token,) in zip(chosen, best, strict=True):
            if not text.done:
                text.take([], 0, token, ends=backend.ends)
        return to_ids(best, logits_B1V.device)

    return decode_stepwise(backend, requests, config, choose)
