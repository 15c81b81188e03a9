"""Who writes a whole text at once: the CTC decoder over its slots, or the drafter over one block.

Both can look again (mask-predict, Ghazvininejad et al., 2019, arXiv:1904.09324): before pass i of n
the share i / n of the slots, those that were surest so far, are known; the others are asked again.
The training of a CTC decoder reveals few slots to it, and fewer the better it gets (GLAT): where
half of them are known it drops words. So for it that share is `MOST_KNOWN` (1 - i / n). Each row is
refined by itself, and what it draws comes from its own seed.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from outrider.decoding.protocol import Backend, State
from outrider.decoding.questions import Forbidden, Path
from outrider.decoding.request import Request, row_seed, up_to_end
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.stream import Stream

__all__ = ["BlockWriter", "CtcWriter", "Text", "Writer", "collapse"]

MOST_KNOWN = 0.15
"""Most of its slots that a CTC decoder is told: about as many as its training reveals."""
SLOTS_PER_TOKEN, SPARE_SLOTS = 1.5, 4
"""Length of the drafter's block: so much for each token of the source, and so much more."""

Tokens = NDArray[np.int64]
Probs = NDArray[np.float64]


class Text(NamedTuple):
    """One candidate."""

    tokens: list[int]
    """Without the end token."""
    ended: bool
    """Whether it ended, or its slots were too few."""


class Writer:
    """Fills the slots of a batch, again and again if asked to."""

    state: State
    slots: list[int]
    """Slots of each row."""
    tokens_BU: Tokens
    """What each slot says."""
    prob_BU: Probs
    """How likely it found that when it was last asked."""

    def __init__(
        self,
        backend: Backend,
        requests: Sequence[Request],
        config: DecodeSettings,
        limits: Sequence[int],
        *,
        scored: bool,
    ) -> None:
        """Read the sources; where texts will be `scored` the state has room for `limits` tokens."""
        self.backend, self.requests, self.config = backend, requests, config
        self._open([request.source for request in requests], limits, scored)

    def refine(self) -> None:
        """Fill all slots, then ask the less certain ones again."""
        passes = self.config.iterations + 1
        self.tokens_BU, self.prob_BU = self._fill(None, last=passes == 1)
        for count in range(1, passes):
            share = self._share(count, passes)
            known_BU = _surest(self.tokens_BU, self.prob_BU, self._used(), share)
            tokens_BU, prob_BU = self._fill(known_BU, last=count == passes - 1)
            self.tokens_BU = np.where(known_BU >= 0, known_BU, tokens_BU)
            self.prob_BU = np.where(known_BU >= 0, self.prob_BU, prob_BU)

    def texts(self) -> list[list[Text]]:
        """Return the candidates of each request, what the slots say first."""
        raise NotImplementedError

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        """Read the sources."""
        raise NotImplementedError

    def _fill(self, known_BU: Tokens | None, *, last: bool) -> tuple[Tokens, Probs]:
        """Run one pass: the likeliest token of every slot, and its probability."""
        raise NotImplementedError

    def _used(self) -> list[int]:
        """Count the slots of each row that its text is made of."""
        raise NotImplementedError

    def _share(self, count: int, passes: int) -> float:
        """Return the share of the used slots that are known before pass `count` of `passes`."""
        return count / passes

    def _uniform(self) -> list[list[list[float]]]:
        """Draw numbers for all candidates but the first, [B, N - 1, U], each row its own."""
        others, most = self.config.candidates - 1, max(self.slots)
        found = []
        for request, count in zip(self.requests, self.slots, strict=True):
            drawn = Stream(row_seed(request, self.config)).draw(others, count)
            found.append([[*numbers, *[0.0] * (most - count)] for numbers in drawn])
        return found


class CtcWriter(Writer):
    """Reads texts off the slots of the CTC decoder."""

    def texts(self) -> list[list[Text]]:
        """Collapse the best path and those drawn beside it."""
        return [
            [Text(collapse(path[:count], blank=self.backend.pad), True) for path in (best, *drawn)]
            for best, drawn, count in zip(
                self.tokens_BU.tolist(), self.drawn, self.slots, strict=True
            )
        ]

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        assert self.backend.slots is not None
        self.filler = self.backend.slots
        self.slots = [self.filler.per_token * len(source) for source in sources]
        capacity = max(limits) if scored else 0
        self.state = self.backend.encode(sources, capacity=capacity, parallel=True)
        # The blank is no token of a text, and a text ends with its slots.
        forbidden = {*self.config.suppress, *self.backend.ends} - {self.backend.pad}
        self.forbidden = Forbidden(tuple(sorted(forbidden)))
        self.drawn: list[list[list[int]]] = [[] for _ in sources]

    def _fill(self, known_BU: Tokens | None, *, last: bool) -> tuple[Tokens, Probs]:
        uniform = self._uniform() if last and self.config.candidates > 1 else None
        ask = Path(self.forbidden, self.config.iterations > 0, uniform)
        known = None if known_BU is None else known_BU.tolist()
        found = self.filler.fill(self.state, ask, known)
        if uniform is not None:
            drawn_BNU = np.array(found.drawn)
            if known_BU is not None:  # slots that are known stand
                drawn_BNU = np.where(known_BU[:, None] >= 0, known_BU[:, None], drawn_BNU)
            self.drawn = drawn_BNU.tolist()
        tokens_BU = np.array(found.tokens)
        prob_BU = np.array(found.prob) if found.prob else np.zeros(tokens_BU.shape)
        return tokens_BU, prob_BU

    def _used(self) -> list[int]:
        return self.slots

    def _share(self, count: int, passes: int) -> float:
        return MOST_KNOWN * (1 - count / passes)


class BlockWriter(Writer):
    """Lets the drafter fill one block, as long as the text may be."""

    @classmethod
    def beyond(
        cls,
        backend: Backend,
        config: DecodeSettings,
        state: State,
        newest: Sequence[int],
        slots: Sequence[int],
    ) -> Self:
        """Return one that goes on from the `newest` token of each row of a state."""
        assert backend.drafts is not None
        writer = cls.__new__(cls)
        writer.backend, writer.config, writer.drafts = backend, config, backend.drafts
        writer.state, writer.newest, writer.slots = state, list(newest), list(slots)
        return writer

    def texts(self) -> list[list[Text]]:
        """Read the likeliest block and those drawn beside it up to their end tokens."""
        blocks = [[best] for best in self.tokens_BU.tolist()]
        if self.config.candidates > 1:
            for row, drawn in zip(blocks, self._draw(self.config.candidates), strict=True):
                row += drawn
        rows = zip(blocks, self.slots, strict=True)
        return [[self._read(tokens[:slots]) for tokens in found] for found, slots in rows]

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        assert self.backend.drafts is not None
        self.drafts = self.backend.drafts
        # A place depends on those before it only, so a longer neighbour does not change a row.
        self.slots = [
            min(
                limit,
                self.drafts.longest_text,
                math.ceil(SLOTS_PER_TOKEN * len(source)) + SPARE_SLOTS,
            )
            for source, limit in zip(sources, limits, strict=True)
        ]
        capacity = max(limits) if scored else max(self.slots)
        self.state = self.backend.encode(sources, capacity=capacity, drafting=True)
        self.newest = [self.backend.start] * len(sources)

    def _fill(self, known_BU: Tokens | None, *, last: bool) -> tuple[Tokens, Probs]:
        unknown = [[-1] * max(self.slots)] * len(self.slots)
        known = unknown if known_BU is None else known_BU.tolist()
        tokens, prob = self.drafts.predict(self.newest, self.state, known)
        return np.array(tokens), np.array(prob)

    def _used(self) -> list[int]:
        """A text is made of everything up to its end token, that one included."""
        rows = zip(self.tokens_BU.tolist(), self.slots, strict=True)
        return [min(up_to_end(tokens, self.backend.ends), slots) for tokens, slots in rows]

    def _draw(self, candidates: int) -> list[list[list[int]]]:
        """Draw blocks from the drafter; the rows are repeated for all candidates."""
        self.state = self.state.repeat_rows(candidates)
        likeliest = [0.0] * max(self.slots)  # the first candidate is written already
        uniform = [numbers for row in self._uniform() for numbers in (likeliest, *row)]
        newest = [token for token in self.newest for _ in range(candidates)]
        counts = [max(self.slots)] * len(newest)
        drawn = self.drafts.draft(newest, self.state, counts, uniform=uniform).tokens
        return [drawn[n + 1 : n + candidates] for n in range(0, len(drawn), candidates)]

    def _read(self, tokens: list[int]) -> Text:
        forbidden = {*self.config.suppress, self.backend.pad}
        tokens = tokens[: up_to_end(tokens, self.backend.ends)]
        ended = tokens[-1] in self.backend.ends
        words = tokens[:-1] if ended else tokens
        return Text([token for token in words if token not in forbidden], ended)


def collapse(path: Sequence[int], *, blank: int) -> list[int]:
    """Read the slots of a CTC decoder as a text: merge equal neighbours, drop blanks."""
    return [token for token, _ in groupby(path) if token != blank]


def _surest(tokens_BU: Tokens, prob_BU: Probs, used: Sequence[int], share: float) -> Tokens:
    """Keep a share of each row's used slots, the likeliest; -1 elsewhere."""
    used_B1 = np.array(used)[:, None]
    prob_BU = np.where(np.arange(tokens_BU.shape[1]) >= used_B1, -1.0, prob_BU)
    rank_BU = np.argsort(np.argsort(-prob_BU, axis=1, kind="stable"), axis=1)
    return np.where(rank_BU >= np.floor(used_B1 * share), -1, tokens_BU)
