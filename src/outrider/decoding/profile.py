"""How many tokens to draft: what a block costs on this machine, and what it is likely to bring.

    tokens of a round = 1 + sum_{i <= k} s_i            s_i the chance that i drafts in a row hold
    k = argmax (tokens of a round) / (seconds of drafting + seconds of verifying k + 1 tokens)

Costs are measured once, for several numbers of rows and tokens, and interpolated. The chances come
from the drafter's own confidence in a block, and before there is one from a moving average of what
was accepted so far. One row leaves a machine idle that reads all weights for one token, so a block
is almost free; many rows keep it busy, and then plain decoding wins.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple, cast

import torch
from torch import Tensor

from outrider.decoding.paces import Paces
from outrider.decoding.protocol import Backend, Chooser, State

__all__ = ["Costs", "Plan", "Profile"]

ROWS = (1, 8, 32, 2, 4, 16)
"""Numbers of rows that are measured, in this order while there is time; the first two always."""
LONGEST = 12
"""Most tokens that are drafted where nobody asks for more."""
WIDE = 160
"""Blocks of more tokens than this, over all rows, are extrapolated: nobody will want them."""
TURNS = (3, 9)
"""How often everything is timed at least and at most; the first time does not count."""
PATIENCE = 0.2
"""Seconds after which the least must do, for each number of rows."""
SECONDS = 1.0
"""Measuring stops about here; what is missing is interpolated."""
HELD = 12
"""Tokens the rows hold while they are measured."""
HOPE = 0.8
"""Chance of a draft to hold before anything was seen: 4.3 tokens a round with 8 drafted. Rather too
high than too low: what is not tried is not learned."""
PACE = 0.02
"""Weight of one draft in the moving average."""
SPREAD = 0.1
"""More rounds for every doubling of rows: the batch goes on until its unluckiest row is done."""
MARGIN = 1.05
"""How much faster drafting must look for a batch to start with it."""


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


class Plan(NamedTuple):
    """What a round should do."""

    tokens: int
    """How many to draft; 0 where a plain step is the better buy."""
    worth: float
    """Chance to stand that a drafted token must have to be verified: with a lower one it brings
    fewer tokens in the time it takes than a round does."""


class Profile:
    """What blocks cost, and how often drafts hold."""

    def __init__(self, costs: Mapping[int, Costs]) -> None:
        """Hold what was measured for some numbers of rows."""
        self._costs = dict(sorted(costs.items()))
        self._interpolated: dict[int, Costs] = {}
        self.hold = [HOPE] * len(next(iter(self._costs.values())).draft)
        """Chance of the draft at each place to hold if all before it do, as seen so far."""
        self.paces = Paces()
        """What whole batches took, with drafting and without."""

    @classmethod
    @torch.inference_mode()
    def measure(cls, backend: Backend, *, source_length: int = 24) -> "Profile":
        """Time a model and its drafter; a language model has a source length of 0."""
        costs: dict[int, Costs] = {}
        started = time.perf_counter()
        for rows in ROWS:
            if len(costs) >= 2 and time.perf_counter() - started > SECONDS:
                break
            costs[rows] = _measure(backend, rows, source_length)
        return cls(_smooth(costs))

    def costs(self, rows: int) -> Costs:
        """Return the seconds of each call for so many rows."""
        found = self._interpolated.get(rows)
        if found is None:
            found = self._interpolated[rows] = self._interpolate(rows)
        return found

    def plan(self, rows: int) -> Plan:
        """Return how many tokens to draft, and which of them to verify."""
        costs = self.costs(rows)
        best, speed = 0, 1 / costs.extend[0]
        tokens = survival = 1.0
        for k, (hold, draft) in enumerate(zip(self.hold, costs.draft, strict=True), start=1):
            survival *= hold
            tokens += survival
            if tokens > speed * (draft + costs.extend[k]):
                best, speed = k, tokens / (draft + costs.extend[k])
        one_more = (costs.extend[-1] - costs.extend[0]) / (len(costs.extend) - 1)
        return Plan(best, speed * one_more)

    def pays(self, rows: int, *, length: float) -> bool:
        """Whether a batch of so many rows should start with drafting at all.

        `length` is how many tokens a row is likely to have: opening is paid for once.
        """
        k, costs = self.plan(rows).tokens, self.costs(rows)
        if not k:
            return False
        rounds = length / (1 + sum(accumulate(self.hold[:k], mul)))
        rounds *= 1 + SPREAD * math.log2(rows)
        drafting = costs.open + rounds * (costs.draft[k - 1] + costs.extend[k])
        return length * costs.plain > MARGIN * drafting

    def learn(self, drafted: int, accepted: int) -> None:
        """Remember one block of one row."""
        for place in range(accepted):
            self.hold[place] += PACE * (1 - self.hold[place])
        if accepted < drafted:
            self.hold[accepted] -= PACE * self.hold[accepted]

    def hope(self) -> None:
        """Forget a little, so that a drafter that once was wrong is tried again."""
        self.hold = [hold + PACE * max(0.0, HOPE - hold) for hold in self.hold]

    def _interpolate(self, rows: int) -> Costs:
        known = self._costs
        plain = _line({n: costs.plain for n, costs in known.items()}, rows)
        open_ = _line({n: costs.open for n, costs in known.items()}, rows)
        extend, draft = (
            tuple(
                _line(dict(zip(known, seconds, strict=True)), rows)
                for seconds in zip(*parts, strict=True)
            )
            for parts in (
                [costs.extend for costs in known.values()],
                [costs.draft for costs in known.values()],
            )
        )
        return Costs(plain, extend, draft, open_)


def _line(known: Mapping[int, float], x: int) -> float:
    """Interpolate between neighbours; beyond the last follow the last two, or the origin."""
    points = [(0, 0.0), *known.items()] if len(known) == 1 else list(known.items())
    right = min(max(bisect_left([point for point, _ in points], x), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1 : right + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _measure(backend: Backend, rows: int, source_length: int) -> Costs:
    held, longest = HELD, min(backend.longest_draft, LONGEST)
    if backend.max_length is not None:
        held = min(held, backend.max_length // 2)
        longest = min(longest, backend.max_length - held - 1)
    source, capacity = [[backend.eos] * source_length] * rows, held + longest + 1

    plain = backend.encode(source, capacity=capacity)
    tokens_BT = torch.full((rows, capacity), backend.eos, device=plain.length_B.device)
    backend.extend(tokens_BT[:, :held], plain, last=True)
    state = backend.encode(source, capacity=capacity, drafting=True)
    backend.extend(tokens_BT[:, :held], state, last=True)
    # Rows that accept different numbers of tokens are differently long.
    state.rollback(held - torch.arange(rows, device=tokens_BT.device) % min(4, held))

    calls = {("plain", 1): _extend(backend, plain, tokens_BT[:, :1])}
    for m in _sizes(rows, (1, 2, 3, 5, 9, longest + 1)):
        calls["extend", m] = _extend(backend, state, tokens_BT[:, :m])
    for k in _sizes(rows, (1, 2, 4, longest)):
        calls["draft", k] = _draft(backend, state, tokens_BT[:, :1], k)
    for drafting in (False, True):
        calls["open", drafting] = _open(backend, source, capacity, drafting)
    taken = _time(calls)
    extend, draft = (
        {size: seconds for (kind, size), seconds in taken.items() if kind == wanted}
        for wanted in ("extend", "draft")
    )
    return Costs(
        taken["plain", 1],
        tuple(_line(extend, m) for m in range(1, longest + 2)),
        tuple(_line(draft, k) for k in range(1, longest + 1)),
        max(0.0, taken["open", True] - taken["open", False]),
    )


def _open(
    backend: Backend, source: Sequence[Sequence[int]], capacity: int, drafting: bool
) -> Callable[[], object]:
    return lambda: backend.encode(source, capacity=capacity, drafting=drafting).length_B.tolist()


def _sizes(rows: int, sizes: Sequence[int]) -> list[int]:
    """Return the sizes worth timing, in order: none above the last, few where rows are many."""
    possible = sorted({min(size, sizes[-1]) for size in sizes})
    return [size for n, size in enumerate(possible) if n < 2 or rows * size <= WIDE]


def _extend(backend: Backend, state: State, tokens_BT: Tensor) -> Callable[[], object]:
    """Time what the loop will call: with logits only where there is no way past them."""
    length_B, tokens = state.length_B, tokens_BT.tolist()
    choose = cast(Chooser, backend).likeliest if hasattr(backend, "likeliest") else None

    def call() -> None:
        if choose is not None:
            choose(tokens, state, [])
        else:
            backend.extend(tokens_BT, state)[0, 0, 0].item()  # waits for a device that runs ahead
        state.rollback(length_B)

    return call


def _draft(backend: Backend, state: State, newest_B1: Tensor, k: int) -> Callable[[], object]:
    return lambda: backend.draft(newest_B1, state, k).tokens_BK.tolist()


def _time(calls: Mapping[tuple[str, int], Callable[[], object]]) -> dict[tuple[str, int], float]:
    """Return the least seconds of each call; in turns, so that a disturbance does not hit one."""
    taken = dict.fromkeys(calls, math.inf)
    least, most = TURNS
    begun = time.perf_counter()
    for turn in range(most):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if turn:  # the first use of a shape prepares kernels
                taken[name] = min(taken[name], time.perf_counter() - started)
        if turn + 1 >= least and time.perf_counter() - begun > PATIENCE:
            break
    return taken


def _smooth(costs: Mapping[int, Costs]) -> dict[int, Costs]:
    """Let nothing cost more than a larger one of its kind: disturbances only ever add time.

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


def _least_from_here(seconds: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate(reversed(list(seconds)), min))[::-1]
