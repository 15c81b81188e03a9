"""A session: requests come, rows are decoded together, texts go, and nobody waits for a neighbour.

    session = Session(backend, rows=32)
    number = session.add(Request(source, config=DecodeSettings(mode="tandem")))
    while session.busy:
        for update in session.step():
            ...                          update.tokens as they come, update.hypotheses at the end

Everything about a request is its own: mode, strategy, limits, seed, deadline. Rows that go through
the same kind of round form a batch (`batch.py`), and each `step` runs one round of every batch.
Whoever is done leaves, and whoever waits takes the place at once. Rows are independent, so what a
row says is what it says alone.

A list of requests: a session that is fed and drained.

What to lower when decoding takes more memory than there is.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from time import monotonic, perf_counter
from typing import NamedTuple, Protocol

from outrider.decoding.beam import BeamBatch
from outrider.decoding.controller import Controller
from outrider.decoding.parallel import ContinuationBatch, ParallelBatch, check_parallel
from outrider.decoding.plain import PlainBatch
from outrider.decoding.protocol import Backend
from outrider.decoding.request import (
    Hypothesis,
    Request,
    Row,
    check_suppress,
    needs,
    row_seed,
    token_limit,
)
from outrider.decoding.sampling import Stream
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Round, Statistics
from outrider.decoding.tandem import (
    ExactBatch,
    JudgedBatch,
    block_size,
    is_exact,
    may_choose,
    settles,
)
from outrider.errors import OutriderError, within_memory

__all__ = ["AHEAD", "Session", "Update", "decode", "enough_memory"]


def enough_memory(config: DecodeSettings, *, rows: int) -> AbstractContextManager[None]:
    """Turn running out of memory into a `ResourceError` that names what takes it."""
    what = "1 row" if rows == 1 else f"{rows} rows"
    return within_memory(f"decoding {what} at once", f"lower {' or '.join(_levers(config, rows))}")


def _levers(config: DecodeSettings, rows: int) -> list[str]:
    """Name what takes memory, the dearest first."""
    found = ["batch_tokens"] if rows > 1 else []
    if config.strategy == "beam" and config.beams > 1:
        found.append(f"beams ({config.beams})")
    if config.candidates > 1:
        found.append(f"candidates ({config.candidates})")
    tokens = config.max_new_tokens
    return [*found, "max_new_tokens" if tokens is None else f"max_new_tokens ({tokens})"]


ROWS = 64
"""Rows in flight where nobody says."""
TOGETHER = 8
"""Rows are opened together once this part of the places is free: many cost less than one by one."""
SPELL = 128
"""Rows after which drafting is chosen anew, if there is never a pause."""


class Update(NamedTuple):
    """News of one request."""

    id: int
    tokens: tuple[int, ...]
    """What it said since the last update, without an end token; beam search and a parallel decoder
    say everything at last."""
    hypotheses: list[Hypothesis] | None
    """What it came to, best first; None while it goes on."""
    error: OutriderError | None = None
    """Why it could not be decoded."""
    rounds: tuple[Round, ...] = ()
    """What was drafted for it since the last update, and what became of it."""
    at: float = 0.0
    """When it had come so far, by `time.perf_counter`."""


class _Batch(Protocol):
    """Rows that share a state and go through the same kind of round."""

    @property
    def rows(self) -> Sequence[Row]: ...
    def join(self, new: Sequence[Row]) -> None: ...
    def step(self) -> None: ...
    def tidy(self) -> None: ...


class _Kind(NamedTuple):
    """What rows must have in common to be decoded together, and who decodes them."""

    key: Hashable
    make: Callable[[], _Batch]


class Session:
    """Decodes what it is given, as it comes. Not for several threads at once."""

    def __init__(
        self,
        backend: Backend,
        config: DecodeSettings | None = None,
        *,
        rows: int = ROWS,
        tokens: int | None = None,
        controller: Controller | None = None,
        stats: Statistics | None = None,
        ahead: int = 1,
    ) -> None:
        """Open a session on a model.

        Args:
            backend: Who computes.
            config: How to decode requests that have no config of their own.
            rows: Rows in flight at most, every beam counted.
            tokens: Bound on what those rows may hold together: sources, prompts and new tokens. One
                that alone is larger goes alone.
            controller: Chooses whether to draft, and how much, where every choice writes the same.
            stats: Told how it went.
            ahead: Tokens that greedy rows may say in a round, until one of them is done. More than
                one spares a fast model the way back to here; who streams them waits for the last.
                It may be changed between two rounds.
        """
        self.backend, self.config = backend, config or DecodeSettings()
        self.rows, self.tokens = rows, tokens
        self.stats = Statistics() if stats is None else stats
        self.controller = controller
        self._drafting, self._came = True, 0
        """Whether rows that come now are opened for drafting, and how many have come since that was
        chosen."""
        self.ahead, self._ids = ahead, count()
        self._ends = frozenset(backend.ends)
        self._checked: tuple[DecodeSettings | None, frozenset[int]] = None, self._ends
        """The last config and end tokens that were found to go with the model."""
        self._waiting: deque[Row] = deque()
        self._batches: dict[Hashable, _Batch] = {}
        self._running: dict[int, tuple[Row, int, int]] = {}
        """Rows in flight, with the rows and the tokens that each takes."""
        self._taken = [0, 0]
        self._gathering: list[Row] = []
        """Rows in flight of which several texts are drawn."""
        self._failed: list[tuple[Row, OutriderError]] = []
        self._watched = False
        """Whether rows may end between two rounds: one has a deadline, or was cancelled."""

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self._running or self._waiting or self._failed)

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that are being decoded."""
        return len(self._running)

    def add(self, request: Request) -> int:
        """Queue a request and return its number; what is wrong with it is said here."""
        row = self._row(request)
        self._waiting.append(row)
        return row.id

    def cancel(self, number: int) -> None:
        """Stop a request; the next step hands back what there is. Unknown numbers are ignored."""
        self._watched = True
        if number in self._running:
            self._running[number][0].stop("cancelled")
        for row in self._waiting:
            if row.id == number:
                row.stop("cancelled")

    def step(self) -> list[Update]:
        """Let waiting rows in, run one round of every batch, and return the news."""
        with enough_memory(self.config, rows=len(self._running) + len(self._waiting)):
            finished = self.advance()
        now, news = perf_counter(), []
        for row, _, _ in self._running.values():
            if len(row.tokens) > row.told:
                said, rounds = tuple(row.tokens[row.told :]), row.untold_rounds()
                news.append(Update(row.id, said, None, None, rounds, now))
                row.told = len(row.tokens)
        for row in finished:
            found = row.hypotheses()
            said = found[0].tokens if found else ()
            rounds = row.untold_rounds()
            news.append(Update(row.id, said[row.told :], found, None, rounds, now))
        news += [Update(row.id, (), None, error, (), now) for row, error in self._failed]
        self._failed.clear()
        return news

    def advance(self) -> list[Row]:
        """Do what `step` does and return the rows that are done, which is all a list needs."""
        finished = self._expire() if self._watched else []
        if self._waiting:
            self._admit()
        for batch in self._batches.values():
            batch.step()
        return finished + self._leave()

    def drain(self) -> list[Row]:
        """Go on until nothing is left; rows that failed raise what was wrong."""
        done: list[Row] = []
        while self._running or self._waiting:
            done += self.advance()
            if self._failed:
                raise self._failed[0][1]
        return done

    def _row(self, request: Request) -> Row:
        """Check a request and make a row of it."""
        backend, config = self.backend, request.config or self.config
        ends = frozenset({*self._ends, *request.ends}) if request.ends else self._ends
        if config is not self._checked[0] or ends is not self._checked[1]:
            check_suppress(config, backend.vocab_size, ends)
            if config.mode == "tandem":
                block_size(backend, config)
            self._checked = config, ends
        limit = token_limit(backend, request, config)
        if config.mode == "parallel":
            check_parallel(backend, request, config)
        row = Row(
            next(self._ids),
            request,
            config,
            limit,
            ends,
            request.opening(backend)[-1],
            len(request.prompt),
        )
        if request.deadline is not None:
            row.expires = monotonic() + request.deadline
            self._watched = True
        if config.strategy == "sample":
            row.stream = Stream(row_seed(request, config))
            if config.candidates > 1:
                row.drawn = self._drawn(row)
        return row

    def _drawn(self, row: Row) -> list[Row]:
        """Make the rows that draw a text each; the first draws what is drawn where it is alone."""
        config = row.config.changed(candidates=1, n_best=1, scores=True)
        seed = row_seed(row.request, config)
        streams = [Stream(seed, *([n] if n else [])) for n in range(row.config.candidates)]
        return [
            Row(row.id, row.request, config, row.limit, row.ends, row.newest, row.held, stream=one)
            for one in streams
        ]

    def _expire(self) -> list[Row]:
        """Stop rows whose time is over, and let those leave that were stopped."""
        now, stopped = monotonic(), False
        for row, _, _ in self._running.values():
            if row.expires <= now:
                row.stop("deadline")
            stopped = stopped or row.done
        for row in self._waiting:
            if row.expires <= now and not row.done:
                row.stop("deadline")
        if not stopped:
            return []
        for batch in self._batches.values():
            batch.tidy()
        return self._leave()

    def _leave(self) -> list[Row]:
        """Let rows go that are done, and return them."""
        for row in self._gathering:
            row.gather()
        finished = [row for row, _, _ in self._running.values() if row.done]
        if finished:
            for row in finished:
                _, rows, tokens = self._running.pop(row.id)
                self._taken[0] -= rows
                self._taken[1] -= tokens
                plain = not (row.rounds or any(one.rounds for one in row.drawn))
                self.stats.plain_rows += plain and row.config.mode != "parallel"
            self._gathering = [row for row in self._gathering if not row.done]
            self._batches = {key: one for key, one in self._batches.items() if one.rows}
        return finished

    def _admit(self) -> None:
        """Let as many rows in as there is room for, in the order they came."""
        if self._running and self._crowded():
            return
        new: list[tuple[Row, int, int]] = []
        while self._waiting:
            row = self._waiting[0]
            rows, tokens = (0, 0) if row.done else needs(self.backend, row.request, row.config)
            if (self._running or new) and not self._fits(rows, tokens):
                break
            self._waiting.popleft()
            new.append((row, rows, tokens))
            self._taken[0] += rows
            self._taken[1] += tokens
        self._running.update((one[0].id, one) for one in new)
        self._join([row for row, _, _ in new if not row.done])

    def _crowded(self) -> bool:
        """Whether too little is free for a group to be opened together."""
        rows, tokens = self._taken
        free = self.rows - rows
        if free < min(len(self._waiting), -(-self.rows // TOGETHER)):
            return True
        return self.tokens is not None and self.tokens - tokens < self.tokens // TOGETHER

    def _fits(self, rows: int, tokens: int) -> bool:
        taken = self._taken
        return taken[0] + rows <= self.rows and (
            self.tokens is None or taken[1] + tokens <= self.tokens
        )

    def _join(self, new: Sequence[Row]) -> None:
        """Put new rows into the batches where they belong."""
        self._gathering += [row for row in new if row.drawn]
        new = [one for row in new for one in row.drawn or [row]]
        self._choose(new)
        kinds: dict[Hashable, tuple[_Kind, list[Row]]] = {}
        for row in new:
            kind = self._kind(row)
            kinds.setdefault(kind.key, (kind, []))[1].append(row)
        for kind, rows in kinds.values():
            batch = self._batches.get(kind.key) or kind.make()
            self._open(batch, rows)
            if batch.rows:
                self._batches[kind.key] = batch

    def _open(self, batch: _Batch, rows: Sequence[Row]) -> None:
        """Let rows join a batch; where not all can, let those that can."""
        try:
            batch.join(rows)
        except (OutriderError, MemoryError) as error:
            if len(rows) > 1:
                for row in rows:
                    self._open(batch, [row])
                return
            row = rows[0]
            row.done = True
            if row.id not in self._running:  # another text of the same request has failed
                return
            row, taken, tokens = self._running.pop(row.id)
            self._taken[0] -= taken
            self._taken[1] -= tokens
            row.stop("cancelled")
            self._gathering = [one for one in self._gathering if one is not row]
            if not isinstance(error, OutriderError):
                raise
            self._failed.append((row, error))

    def _is_free(self, row: Row) -> bool:
        """Whether a controller may choose how a row is decoded."""
        return row.config.mode == "tandem" and may_choose(self.backend, row.config)

    def _choose(self, new: Sequence[Row]) -> None:
        """Choose whether to draft for rows that come now.

        Rows decoded together are cheaper than in two groups, so a choice holds until the rows that
        came with it are done, or many have come.
        """
        if self.controller is None:
            return
        came = sum(self._is_free(row) for row in new)
        if not came:
            return
        inside = sum(self._is_free(row) for row, _, _ in self._running.values() if not row.done)
        if inside == came or self._came >= SPELL:
            self._drafting, self._came = self.controller.drafts(inside), 0
            if not self._drafting:
                self.stats.note("drafting was slower: some rows were decoded without it")
        self._came += came

    def _kind(self, row: Row) -> _Kind:
        """Say which rows can be decoded together with this one."""
        backend, stats, config = self.backend, self.stats, row.config
        if config.mode == "parallel":
            whole = ParallelBatch if row.request.source else ContinuationBatch
            return _Kind((whole.__name__, config), partial(whole, backend, stats, config))
        masked = config.suppress, row.ends, config.min_new_tokens
        if config.strategy == "beam":
            make = partial(BeamBatch, backend, stats, masked, beams=config.beams)
            return _Kind(("beam", config.beams, *masked), make)
        plain = partial(PlainBatch, backend, stats, masked, ahead=lambda: self.ahead)
        if config.mode == "ar":
            return _Kind(("plain", *masked), plain)
        if not is_exact(config):
            return self._judged(row)
        settled = backend.epsilon > 0 and settles(backend, config)
        controller = self.controller if self._is_free(row) else None
        if controller is not None and not self._drafting:
            return _Kind(
                ("undrafted", settled, *masked),
                partial(plain, settled=settled, controller=controller),
            )
        block = block_size(backend, config) if controller is None else controller.longest
        return _Kind(
            ("exact", block, controller is None, settled, *masked),
            partial(
                ExactBatch,
                backend,
                stats,
                masked,
                block=block,
                controller=controller,
                settled=settled,
            ),
        )

    def _judged(self, row: Row) -> _Kind:
        """Blocks are of one size, so a row that can run out of positions goes alone."""
        backend, config = self.backend, row.config
        block = block_size(backend, config)
        end = len(row.request.prompt) + row.limit + block
        alone = row.id if backend.max_length is not None and end > backend.max_length else None
        masked = config.suppress, row.ends, config.min_new_tokens
        return _Kind(
            ("judged", config.strategy, config.sampling, config.gamma, block, alone, *masked),
            partial(JudgedBatch, backend, self.stats, masked, block=block),
        )


AHEAD = 16
"""Tokens that greedy rows say at once: nobody sees them before the list is done."""


def decode(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeSettings,
    *,
    rows: int | None = None,
    tokens: int | None = None,
    controller: Controller | None = None,
    stats: Statistics | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each request, best first, in the order of the requests.

    Args:
        backend: Who computes.
        requests: One for each row.
        config: Mode, strategy and their settings.
        rows: Rows in flight at most, every beam counted; None for all at once.
        tokens: Bound on what the rows in flight may hold together.
        controller: Chooses whether to draft, and how much, where every choice writes the same.
        stats: Told how it went.
    """
    most = max(1, len(requests) * config.beams * config.candidates) if rows is None else rows
    session = Session(
        backend, config, rows=most, tokens=tokens, controller=controller, stats=stats, ahead=AHEAD
    )
    for request in requests:
        session.add(request)
    with enough_memory(config, rows=len(requests)):
        done = session.drain()
    done.sort(key=lambda row: row.id)
    return [row.hypotheses() for row in done]
