"""Copies of the source text, such as names, numbers and code (Saxena, 2023, prompt lookup).

    draft = x_{i+1} .. x_{i+k},    i = the last end of the longest match of y_1 .. y_t in x

x is the source text, or the prompt of a language model, and y the text so far.
"""

from collections.abc import Sequence
from itertools import takewhile

from outrider.decoding.drafts import DraftSource, History
from outrider.decoding.protocol import Proposal

LONGEST_MATCH = 8
"""Most tokens that are compared."""


class Source(DraftSource):
    """Continues the source text after the newest tokens."""

    def propose(self, histories: Sequence[History], counts: Sequence[int]) -> Proposal:
        """Propose nothing where the last token is not in the source."""
        rows = zip(histories, counts, strict=True)
        return Proposal([_continuation(*history, count) for history, count in rows])


def _continuation(source: Sequence[int], target: Sequence[int], count: int) -> list[int]:
    ends = [n for n, token in enumerate(source[:-1], start=1) if token == target[-1]]
    last = max(ends, key=lambda n: (_match(source[:n], target), n), default=len(source))
    return list(source[last : last + count])


def _match(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many of the last tokens are equal."""
    pairs = zip(one[: -LONGEST_MATCH - 1 : -1], other[: -LONGEST_MATCH - 1 : -1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
