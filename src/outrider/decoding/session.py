"""Continuous batching: finished rows are replaced immediately.

    session = Session(backend, rows=32)
    number = session.add(Request(source, config=DecodeConfig(mode="tandem")))
    while session.busy:
        for update in session.step():
            ...                          update.tokens while it runs, update.hypotheses at the end

Requests have their own mode, strategy, limits, seed and deadline. Rows that run the same kind of
round form a batch (`batch.py`), and each `step` runs one round of every batch. Rows are
independent: a row's text does not depend on other rows.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from outrider.decoding.protocol import Backend
from outrider.decoding.request import (
    Hypothesis,
    Masked,
    Request,
    Row,
    block_size,
    check_mode,
    check_suppress,
    is_exact,
    longest_draft,
    may_draft,
    needs,
    resolves_ties,
    row_seed,
    token_limit,
)
from outrider.decoding.sampling import Stream
from outrider.decoding.statistics import Round, Statistics
from outrider.errors import OutriderError, within_memory
from outrider.options import DecodeConfig

if TYPE_CHECKING:
    from outrider.decoding.controller import Controller


def enough_memory(config: DecodeConfig, *, rows: int) -> AbstractContextManager[None]:
    """Turn out-of-memory errors into a `ResourceError` that names the options to lower."""
    options = ["batch_tokens"] if rows > 1 else []
    if config.strategy == "beam" and config.beams > 1:
        options.append(f"beams ({config.beams})")
    if config.candidates > 1:
        options.append(f"candidates ({config.candidates})")
    limit = config.max_new_tokens
    options.append("max_new_tokens" if limit is None else f"max_new_tokens ({limit})")
    count = "1 row" if rows == 1 else f"{rows} rows"
    return within_memory(f"decoding {count} at once", f"lower {' or '.join(options)}")


ROWS = 64
"""Default number of rows in flight."""
GROUPS = 8
"""While rows run, new ones are admitted once 1 / GROUPS of the budget is free: opening several rows
together costs less than opening each alone."""
CHOICE_ROWS = 128
"""Rows after which the choice to draft is made again under continuous load."""


class Update(NamedTuple):
    """Progress of one request."""

    id: int
    tokens: tuple[int, ...]
    """New tokens since the last update, without an end token; beam search and parallel decoders
    report all tokens at the end."""
    hypotheses: list[Hypothesis] | None
    """The results, best first; None while it runs."""
    error: OutriderError | None = None
    """Why it could not be decoded."""
    rounds: tuple[Round, ...] = ()
    """Rounds of tandem decoding since the last update."""
    at: float = 0.0
    """Time of the update, by `time.perf_counter`."""


class _Batch(Protocol):
    """Rows that share a state and run the same kind of round."""

    @property
    def rows(self) -> Sequence[Row]: ...
    def join(self, new: Sequence[Row]) -> None: ...
    def step(self) -> None: ...
    def compact(self) -> None: ...


class _Kind(NamedTuple):
    """A kind of round; rows with the same key are decoded together."""

    key: Hashable
    make: Callable[[], _Batch]


class Session:
    """Decodes requests as they are added. Not thread-safe."""

    def __init__(
        self,
        backend: Backend,
        config: DecodeConfig | None = None,
        *,
        rows: int = ROWS,
        tokens: int | None = None,
        controllers: "dict[str, Controller] | None" = None,
        stats: Statistics | None = None,
        ahead: int = 1,
    ) -> None:
        """Open a session on a model.

        Args:
            backend: Execution backend.
            config: Decode options of requests without their own.
            rows: Most rows in flight, every beam counted.
            tokens: Most tokens of those rows together: sources, prompts and new tokens. A larger
                request is decoded alone.
            controllers: By draft source; they choose whether to draft and how much, where every
                choice gives the same text. Missing ones are added.
            stats: Statistics to add to.
            ahead: Most tokens of greedy rows in a round, until one of them is done. More than one
                spares a fast model the return to Python; streaming clients receive them together,
                after the last. It may be changed between two rounds.
        """
        self.backend, self.config = backend, config or DecodeConfig()
        self.rows, self.tokens = rows, tokens
        self.stats = Statistics() if stats is None else stats
        self.controllers = controllers
        self._choices: dict[Controller, tuple[bool, int]] = {}
        """Whether new rows draft, and how many were opened since that choice."""
        self.ahead, self._ids = ahead, count()
        self._ends = frozenset(backend.ends)
        self._checked: tuple[DecodeConfig | None, frozenset[int]] = None, self._ends
        """The last config and end tokens that were validated."""
        self._waiting: deque[Row] = deque()
        self._batches: dict[Hashable, _Batch] = {}
        self._running: dict[int, Row] = {}
        """Rows in flight."""
        self._gathering: list[Row] = []
        """Rows in flight for which several texts are sampled."""
        self._failed: list[tuple[Row, OutriderError]] = []
        self._may_expire = False
        """Whether rows may end between two rounds: one has a deadline or was cancelled."""

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._running or self._waiting or self._failed)

    @property
    def waiting(self) -> int:
        """Number of requests not started."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of requests being decoded."""
        return len(self._running)

    def add(self, request: Request) -> int:
        """Validate and queue a request; return its number."""
        row = self._row(request)
        self._waiting.append(row)
        return row.id

    def cancel(self, number: int) -> None:
        """Stop a request; the next step returns its partial text. Unknown numbers are ignored."""
        self._may_expire = True
        if number in self._running:
            self._running[number].stop("cancelled")
        for row in self._waiting:
            if row.id == number:
                row.stop("cancelled")

    def step(self) -> list[Update]:
        """Admit waiting rows, run one round of every batch, and return the progress."""
        with enough_memory(self.config, rows=len(self._running) + len(self._waiting)):
            finished = self.advance()
        now, updates = perf_counter(), []
        for row in self._running.values():
            if len(row.tokens) > row.reported:
                new, rounds = tuple(row.tokens[row.reported :]), row.take_new_rounds()
                updates.append(Update(row.id, new, None, None, rounds, now))
                row.reported = len(row.tokens)
        for row in finished:
            hypotheses = row.hypotheses()
            new = hypotheses[0].tokens[row.reported :] if hypotheses else ()
            updates.append(Update(row.id, new, hypotheses, None, row.take_new_rounds(), now))
        updates += [Update(row.id, (), None, error, (), now) for row, error in self._failed]
        self._failed.clear()
        return updates

    def advance(self) -> list[Row]:
        """Do the same as `step` without updates; return the rows that are done."""
        finished = self._expire() if self._may_expire else []
        if self._waiting:
            self._admit()
        for batch in self._batches.values():
            batch.step()
        return finished + self._leave()

    def drain(self) -> list[Row]:
        """Run until all rows are done; the first failure is raised."""
        done: list[Row] = []
        while self._running or self._waiting:
            done += self.advance()
            if self._failed:
                raise self._failed[0][1]
        return done

    def _row(self, request: Request) -> Row:
        """Validate a request and return its row."""
        backend, config = self.backend, request.config or self.config
        ends = frozenset({*self._ends, *request.ends}) if request.ends else self._ends
        if config.mode == "parallel":
            from outrider.decoding.parallel import check_parallel

            check_parallel(backend, request, config)
        if config is not self._checked[0] or ends is not self._checked[1]:
            check_suppress(config, backend.vocab_size, ends)
            check_mode(backend, config)
            self._checked = config, ends
        limit = token_limit(backend, request, config)
        row = Row(
            next(self._ids),
            request,
            config,
            limit,
            ends,
            request.opening(backend)[-1],
            len(request.prompt),
        )
        row.needs = request.needs if request.needs[0] else needs(backend, request, config)
        if request.deadline is not None:
            row.expires = monotonic() + request.deadline
            self._may_expire = True
        if config.strategy == "sample":
            seed = row_seed(request, config)
            row.stream = Stream(seed)
            if config.candidates > 1:
                config = config.changed(candidates=1, n_best=1, scores=True)
                # The first text is the one that is sampled without candidates.
                streams = [Stream(seed, *([n] if n else [])) for n in range(row.config.candidates)]
                row.drawn = [
                    Row(row.id, request, config, limit, ends, row.last, row.cached, stream=stream)
                    for stream in streams
                ]
        return row

    def _expire(self) -> list[Row]:
        """Stop expired rows and remove stopped ones."""
        now, stopped = monotonic(), False
        for row in self._running.values():
            if row.expires <= now:
                row.stop("deadline")
            stopped = stopped or row.done
        for row in self._waiting:
            if row.expires <= now and not row.done:
                row.stop("deadline")
        if not stopped:
            return []
        for batch in self._batches.values():
            batch.compact()
        return self._leave()

    def _leave(self) -> list[Row]:
        """Remove finished rows and return them."""
        for row in self._gathering:
            row.gather()
        finished = [row for row in self._running.values() if row.done]
        if finished:
            for row in finished:
                del self._running[row.id]
                plain = not (row.rounds or any(drawn.rounds for drawn in row.drawn))
                self.stats.plain_rows += plain and row.config.mode != "parallel"
            aligned = [row for row in finished if row.config.alignment and row.request.source]
            if aligned:
                from outrider.decoding.alignment import align

                align(self.backend, aligned)
            self._gathering = [row for row in self._gathering if not row.done]
            self._batches = {key: batch for key, batch in self._batches.items() if batch.rows}
        return finished

    def _admit(self) -> None:
        """Admit waiting rows in order while they fit the row and token budgets."""
        free_rows = self.rows - sum(row.needs[0] for row in self._running.values())
        free_tokens: float = math.inf
        if self.tokens is not None:
            free_tokens = self.tokens - sum(row.needs[1] for row in self._running.values())
        if self._running:
            if free_rows < min(len(self._waiting), -(-self.rows // GROUPS)):
                return
            if self.tokens is not None and free_tokens < self.tokens // GROUPS:
                return
        new: list[Row] = []
        while self._waiting:
            row = self._waiting[0]
            rows, tokens = (0, 0) if row.done else row.needs
            if self._running and (rows > free_rows or tokens > free_tokens):
                break
            self._waiting.popleft()
            self._running[row.id] = row
            free_rows, free_tokens = free_rows - rows, free_tokens - tokens
            if not row.done:
                new.append(row)
        self._join(new)

    def _join(self, new: Sequence[Row]) -> None:
        """Add new rows to their batches."""
        self._gathering += [row for row in new if row.drawn]
        new = [part for row in new for part in row.drawn or [row]]
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
        """Add rows to a batch; if that fails, add them one by one and report those that fail."""
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
            row = self._running.pop(row.id)
            row.stop("cancelled")
            self._gathering = [other for other in self._gathering if other is not row]
            if not isinstance(error, OutriderError):
                raise
            self._failed.append((row, error))

    def _controller(self, row: Row) -> "Controller | None":
        """Return the controller that chooses how a row is decoded, if every choice is allowed."""
        controllers, config = self.controllers, row.config
        if controllers is None or config.mode != "tandem" or not may_draft(self.backend, config):
            return None
        if config.draft not in controllers:
            from outrider.decoding.controller import Controller

            controllers[config.draft] = Controller(longest_draft(self.backend, config))
        return controllers[config.draft]

    def _choose(self, new: Sequence[Row]) -> None:
        """Choose whether to draft for new rows.

        Decoding rows together costs less than in two groups, so a choice holds until all of its
        rows are done, or for `CHOICE_ROWS` rows.
        """
        counts = Counter(filter(None, map(self._controller, new)))
        running = [row for row in self._running.values() if not row.done] if counts else []
        for controller, added in counts.items():
            total = sum(self._controller(row) is controller for row in running)
            drafting, since = self._choices.get(controller, (True, 0))
            if total == added or since >= CHOICE_ROWS:
                drafting, since = controller.drafts(total), 0
                if not drafting:
                    self.stats.note("drafting was slower: some rows were decoded without it")
            self._choices[controller] = drafting, since + added

    def _kind(self, row: Row) -> _Kind:
        """Return the kind of round of a row; unused kinds are not imported."""
        backend, stats, config = self.backend, self.stats, row.config
        if config.mode == "parallel":
            from outrider.decoding.parallel import ContinuationBatch, ParallelBatch

            batch = ParallelBatch if row.request.source else ContinuationBatch
            return _Kind((batch.__name__, config), partial(batch, backend, stats, config))
        masked = config.suppress, row.ends, config.min_new_tokens
        if config.strategy == "beam":
            from outrider.decoding.beam import BeamBatch

            beam = partial(BeamBatch, backend, stats, masked, beams=config.beams)
            return _Kind(("beam", config.beams, *masked), beam)
        if config.mode == "tandem":
            return self._exact(row, masked) if is_exact(config) else self._mixture(row, masked)
        from outrider.decoding.plain import PlainBatch

        plain = partial(PlainBatch, backend, stats, masked, ahead=lambda: self.ahead)
        return _Kind(("plain", *masked), plain)

    def _exact(self, row: Row, masked: Masked) -> _Kind:
        """Return the kind of a tandem row with the text of greedy decoding."""
        backend, config = self.backend, row.config
        replayed = backend.epsilon > 0 and resolves_ties(backend, config)
        controller = self._controller(row)
        if controller is not None and not self._choices[controller][0]:
            from outrider.decoding.plain import PlainBatch

            plain = partial(PlainBatch, backend, self.stats, masked, ahead=lambda: self.ahead)
            return _Kind(
                ("undrafted", controller, replayed, *masked),
                partial(plain, replayed=replayed, controller=controller),
            )
        from outrider.decoding.tandem import ExactBatch

        block = block_size(backend, config) if controller is None else controller.longest
        exact = partial(ExactBatch, backend, self.stats, masked, block=block, draft=config.draft)
        return _Kind(
            ("exact", config.draft, block, controller is None, replayed, *masked),
            partial(exact, controller=controller, replayed=replayed),
        )

    def _mixture(self, row: Row, masked: Masked) -> _Kind:
        """Return the kind of a row with a fixed block; one that can reach `max_length` is alone."""
        from outrider.decoding.tandem import MixtureBatch

        backend, config = self.backend, row.config
        block = block_size(backend, config)
        end = len(row.request.prompt) + row.limit + block
        alone = row.id if backend.max_length is not None and end > backend.max_length else None
        chosen = config.draft, config.strategy, config.sampling, config.gamma
        return _Kind(
            ("mixture", *chosen, block, alone, *masked),
            partial(MixtureBatch, backend, self.stats, masked, block=block, draft=config.draft),
        )


AHEAD = 16
"""Greedy tokens per round for a list of requests, where nothing is streamed."""


def decode(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeConfig,
    *,
    rows: int | None = None,
    tokens: int | None = None,
    controllers: "dict[str, Controller] | None" = None,
    stats: Statistics | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each request, best first, in the order of the requests.

    Args:
        backend: Execution backend.
        requests: One for each row.
        config: Mode, strategy and their settings.
        rows: Most rows in flight, every beam counted; None for all at once.
        tokens: Most tokens of the rows in flight together.
        controllers: By draft source, as in `Session`.
        stats: Statistics to add to.
    """
    if rows is None:
        rows = max(1, len(requests) * config.beams * config.candidates)
    session = Session(
        backend, config, rows=rows, tokens=tokens, controllers=controllers, stats=stats, ahead=AHEAD
    )
    for request in requests:
        session.add(request)
    with enough_memory(config, rows=len(requests)):
        done = session.drain()
    done.sort(key=lambda row: row.id)
    return [row.hypotheses() for row in done]
