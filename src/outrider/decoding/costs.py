"""What drafting, verifying and plain steps cost on this machine: timed as the loops make them.

A call finds in the processor's caches what the calls before it left there. So a draft is timed
after a block was verified and a block after its draft, as in a round of tandem decoding, and plain
steps in a row. Timed each by itself, the parts of a round looked cheaper than they are. And the
tokens are what the model says by itself, for a large head takes longer where it is at a loss.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from outrider.decoding.protocol import Backend, State
from outrider.decoding.questions import Likeliest, Nothing

__all__ = ["Costs", "fit_costs", "follow", "measure_costs", "own_text", "smooth"]

LONGEST = 12
"""Most tokens that are drafted where nobody asks for more."""
SIZES = (1, 2, 4, 8)
"""Drafts that are timed, and the longest."""
WIDE = 160
"""Blocks of more tokens than this, over all rows, are extrapolated: nobody will want them."""
TURNS = (3, 9)
"""How often everything is timed at least and at most; the first time does not count."""
PATIENCE = 0.2
"""Seconds after which the least must do, for each number of rows."""
HELD = 12
"""Tokens the rows hold while they are measured."""
STEPS = 3
"""Single steps in a row; the first, which finds what others left in the caches, does not count."""

Part = Literal["plain", "extend", "draft", "open", "open for drafting"]
Call = Callable[[], object]


class Costs(NamedTuple):
    """Seconds of one call for some number of rows."""

    plain: float
    """A step of one token in a state without a drafter, rows equally long."""
    extend: tuple[float, ...]
    """Verifying 1, 2, ... tokens."""
    draft: tuple[float, ...]
    """Drafting 1, 2, ... tokens."""
    open: float = 0.0
    """What opening rows for drafting takes more: the drafter reads the source too."""


class _Watch:
    """The least seconds of each part, by the number of tokens it is for."""

    def __init__(self) -> None:
        self.least: dict[tuple[Part, int], float] = {}
        self.counts = False

    def time(self, part: Part, tokens: int, call: Call) -> None:
        started = time.perf_counter()
        call()
        seconds = max(time.perf_counter() - started, 1e-9)  # a coarse clock may not move
        if self.counts:
            self.least[part, tokens] = min(self.least.get((part, tokens), math.inf), seconds)


def own_text(backend: Backend, source_length: int) -> list[int]:
    """Return what a model says after nothing of note: as many tokens as are timed."""
    held, longest = _lengths(backend)
    count = held + longest + 1
    state = backend.encode([[backend.eos] * source_length], capacity=count)
    text = [backend.start]
    while len(text) < count:
        text += backend.extend([text[-1:]], state, Likeliest()).tokens[0]
    return text


def measure_costs(backend: Backend, rows: int, source_length: int, text: Sequence[int]) -> Costs:
    """Time a model and its drafter for so many rows; it must be able to count to 2."""
    held, longest = _lengths(backend)
    turn, watch = _prepare(backend, rows, source_length, text, held=held, longest=longest), _Watch()
    begun = time.perf_counter()
    for number in range(TURNS[1]):
        turn(watch)
        watch.counts = True  # the first use of a shape prepares kernels
        if number + 1 >= TURNS[0] and time.perf_counter() - begun > PATIENCE:
            break
    return fit_costs(watch.least, longest)


def _lengths(backend: Backend) -> tuple[int, int]:
    """Return how many tokens rows hold, and how many are drafted at most."""
    assert backend.drafts is not None, "only a drafter can be timed"
    longest, held = min(backend.drafts.longest, LONGEST), HELD
    if backend.max_length is not None:
        held = min(held, backend.max_length // 2)
        longest = max(1, min(longest, backend.max_length - held - 1))
        held = min(held, backend.max_length - longest - 1)
    return held, longest


def fit_costs(least: Mapping[tuple[Part, int], float], longest: int) -> Costs:
    """Turn what was timed into what every number of tokens up to `longest` costs."""
    extend, draft = (
        _rising({tokens: s for (part, tokens), s in sorted(least.items()) if part == wanted})
        for wanted in ("extend", "draft")
    )
    return Costs(
        least["plain", 1],
        tuple(follow(extend, m) for m in range(1, longest + 2)),
        tuple(follow(draft, k) for k in range(1, longest + 1)),
        max(0.0, least["open for drafting", 0] - least["open", 0]),
    )


def smooth(costs: Mapping[int, Costs]) -> dict[int, Costs]:
    """Let nothing cost more than the same for more rows: disturbances only ever add time.

    A plain step is the least of all.
    """
    found: dict[int, Costs] = {}
    above = costs[max(costs)]
    for rows, measured in sorted(costs.items(), reverse=True):
        extend = _least_from_here(map(min, measured.extend, above.extend))
        draft = _least_from_here(map(min, measured.draft, above.draft))
        plain = min(measured.plain, above.plain, extend[0])
        above = found[rows] = Costs(plain, extend, draft, measured.open)
    return dict(reversed(found.items()))


def follow(known: Mapping[int, float], x: int) -> float:
    """Interpolate between neighbours; beyond the last follow the last two, or the origin.

    Never downwards, where a disturbed measurement would lead below zero.
    """
    points = [(0, 0.0), *known.items()] if len(known) == 1 else list(known.items())
    right = min(max(bisect_left([point for point, _ in points], x), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1 : right + 1]
    return y0 + max(0.0, y1 - y0) * (x - x0) / (x1 - x0)


def _rising(seconds: Mapping[int, float]) -> dict[int, float]:
    """Let nothing cost more than what is larger."""
    return dict(zip(seconds, _least_from_here(seconds.values()), strict=True))


def _least_from_here(seconds: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate(reversed(list(seconds)), min))[::-1]


def _prepare(
    backend: Backend,
    rows: int,
    source_length: int,
    text: Sequence[int],
    *,
    held: int,
    longest: int,
) -> Callable[[_Watch], None]:
    """Open rows to measure with; return a function that times everything once."""
    source, capacity = [[backend.eos] * source_length] * rows, held + longest + 1
    plain = backend.encode(source, capacity=capacity)
    state = backend.encode(source, capacity=capacity, drafting=True)
    if held:
        for opened in (plain, state):
            backend.extend([text[:held]] * rows, opened, Nothing(), last=True)
        # Rows that accept different numbers of tokens are differently long.
        state.rollback([held - row % min(4, held) for row in range(rows)])

    new = text[held:]
    singles: dict[Part, Call] = {
        "plain": _extend(backend, plain, rows, new[:1]),
        "extend": _extend(backend, state, rows, new[:1]),
    }
    rounds = {
        k: (
            _draft(backend, state, rows, new[0], k),
            _extend(backend, state, rows, new[: k + 1]),
        )
        for k in _sizes(rows, longest)
    }
    opening: dict[Part, Call] = {
        "open": _open(backend, source, capacity, drafting=False),
        "open for drafting": _open(backend, source, capacity, drafting=True),
    }

    def turn(watch: _Watch) -> None:
        for part, step in singles.items():
            step()
            for _ in range(STEPS - 1):
                watch.time(part, 1, step)
        for k, (draft, verify) in rounds.items():
            watch.time("draft", k, draft)
            watch.time("extend", k + 1, verify)
        for part, open_ in opening.items():
            watch.time(part, 0, open_)

    return turn


def _sizes(rows: int, longest: int) -> list[int]:
    """Return the drafts worth timing, in order: none above the longest, few where rows are many."""
    possible = sorted({*(size for size in SIZES if size < longest), longest})
    return [k for n, k in enumerate(possible) if n < 2 or rows * (k + 1) <= WIDE]


def _extend(backend: Backend, state: State, rows: int, new: Sequence[int]) -> Call:
    lengths, tokens, ask = state.lengths, [new] * rows, Likeliest()

    def call() -> None:
        backend.extend(tokens, state, ask)
        state.rollback(lengths)

    return call


def _draft(backend: Backend, state: State, rows: int, newest: int, k: int) -> Call:
    drafts = backend.drafts
    assert drafts is not None
    return lambda: drafts.draft([newest] * rows, state, [k] * rows)


def _open(
    backend: Backend, source: Sequence[Sequence[int]], capacity: int, *, drafting: bool
) -> Call:
    return lambda: backend.encode(source, capacity=capacity, drafting=drafting).lengths
