"""The thread of one model: between decoding steps it admits and cancels requests, then publishes
new tokens.

Requests of one priority take turns by pieces, so a short request waits for one sentence of a
document instead of the whole document. Priorities share by stride scheduling (Waldspurger and
Weihl, 1995): a piece advances the clock of its priority by tokens / weight, and the priority with
the lowest clock is next. An idle priority does not accumulate turns.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from outrider.decoding import Backend, Controller, Session, Statistics, Update
from outrider.errors import OutriderError
from outrider.serving.limits import Limits
from outrider.serving.request import BusyError, Priority, RequestHandle


class FairQueue:
    """Requests with pieces that have not begun."""

    def __init__(self) -> None:
        self._queues: dict[Priority, deque[RequestHandle]] = {
            priority: deque() for priority in Priority
        }
        self._clock = dict.fromkeys(Priority, 0.0)
        self._now = 0.0

    def __bool__(self) -> bool:
        return self.peek() is not None

    def add(self, request: RequestHandle) -> None:
        """Append a request with pieces that have not begun to the queue of its priority."""
        if request.queued or request.begun == len(request.requests):
            return
        request.queued = True
        queue = self._queues[request.priority]
        if not queue:
            self._clock[request.priority] = max(self._clock[request.priority], self._now)
        queue.append(request)

    def peek(self) -> RequestHandle | None:
        """Return the request whose piece is next; None if the queue is empty."""
        first: Priority | None = None
        for priority, queue in self._queues.items():  # of equal clocks the highest priority is next
            while queue and queue[0].cancelled:
                queue.popleft()
            if queue and (first is None or self._clock[priority] <= self._clock[first]):
                first = priority
        return None if first is None else self._queues[first][0]

    def take(self) -> tuple[RequestHandle, int]:
        """Remove the next piece; return its request and its number."""
        request = self.peek()
        assert request is not None
        queue, piece = self._queues[request.priority], request.begun
        queue.popleft()
        request.begun += 1
        request.queued = request.begun < len(request.requests)
        if request.queued:
            queue.append(request)
        self._now = self._clock[request.priority]
        self._clock[request.priority] += request.requests[piece].needs[1] / request.priority
        return request, piece

    def clear(self) -> list[RequestHandle]:
        """Remove and return all requests."""
        requests = [request for queue in self._queues.values() for request in queue]
        for queue in self._queues.values():
            queue.clear()
        return requests


AHEAD = 8
"""Tokens per step of greedy rows that are not streamed; a new request waits for at most as many."""
SPARE = 8
"""One `SPARE`th of the rows may wait in the session, which starts several rows together."""

Events = list[tuple[RequestHandle, tuple[int, Update] | Exception]]
"""Updates with the numbers of their pieces, or errors that end a request."""


class EngineThread:
    """Decodes requests on its own thread until it is closed."""

    def __init__(
        self,
        backend: Backend,
        limits: Limits,
        *,
        controllers: dict[str, Controller],
        deliver: Callable[[Events], None],
        name: str = "model",
    ) -> None:
        """Start the thread.

        Args:
            backend: Execution backend.
            limits: Row and token budget.
            controllers: By draft source; they choose whether to draft and how much.
            deliver: Called on this thread with the events of each step.
            name: Name of the thread.
        """
        self._backend, self._limits, self._controllers = backend, limits, controllers
        self._deliver = deliver
        self.stats = Statistics()
        self._session = self._open_session()
        self._queue = FairQueue()
        self._active: dict[int, tuple[RequestHandle, int]] = {}
        """Pieces in the session, by their number there."""
        self._wake = threading.Condition()
        self._new: list[RequestHandle] = []
        self._cancelled: list[RequestHandle] = []
        self._closing = False
        self.rounds = self.pieces = self.tokens = self.cancelled = 0
        """Totals: steps, decoded pieces, generated tokens, cancelled requests."""
        self._thread = threading.Thread(target=self._run, name=f"outrider-{name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Number of pieces that are being decoded."""
        return self._session.running

    def submit(self, request: RequestHandle) -> None:
        """Queue a request, or the new pieces of a request."""
        with self._wake:
            if self._closing:
                raise BusyError("the model is being unloaded; try again", retry_after=1)
            self._new.append(request)
            self._wake.notify()

    def cancel(self, request: RequestHandle) -> None:
        """Cancel a request before the next step; no more events of it are delivered."""
        with self._wake:
            request.cancelled = True
            self._cancelled.append(request)
            self._wake.notify()

    def close(self) -> None:
        """Stop after this step; unfinished requests receive an error."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _open_session(self) -> Session:
        return Session(
            self._backend,
            rows=self._limits.rows,
            tokens=self._limits.batch_tokens,
            controllers=self._controllers,
            stats=self.stats,
        )

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (
                    self._new
                    or self._cancelled
                    or self._closing
                    or self._session.busy
                    or self._queue
                ):
                    self._wake.wait()
                new, self._new = self._new, []
                cancelled, self._cancelled = self._cancelled, []
                closing = self._closing
            for request in new:
                self._queue.add(request)
            active = (request for request, _ in self._active.values())
            if closing:
                error = BusyError("the server is shutting down; try again", retry_after=5)
                if events := _fail([*self._queue.clear(), *active], error):
                    self._deliver(events)
                return
            try:
                self.cancelled += len(cancelled)
                for request in cancelled:
                    self._withdraw(request)
                self._fill_session()
                events = self._collect(self._session.step())
            except Exception as error:
                # Out of memory or a bug: only requests in the session fail.
                events = _fail(active, error)
                self._active.clear()
                self._session = self._open_session()
            self.rounds += 1
            if events:
                self._deliver(events)

    def _withdraw(self, request: RequestHandle) -> None:
        """Cancel all pieces of a request."""
        request.cancelled = True
        for number, (owner, _) in self._active.items():
            if owner is request:
                self._session.cancel(number)

    def _fill_session(self) -> None:
        """Move pieces from the queue to the session within the row and token budget."""
        limits = self._limits
        most_rows = limits.rows + limits.rows // SPARE
        needs = [request.requests[piece].needs for request, piece in self._active.values()]
        rows, tokens = sum(need[0] for need in needs), sum(need[1] for need in needs)
        while (request := self._queue.peek()) is not None:
            more_rows, more_tokens = request.requests[request.begun].needs
            rows, tokens = rows + more_rows, tokens + more_tokens
            if self._active and (rows > most_rows or tokens > limits.batch_tokens):
                break
            request, piece = self._queue.take()
            try:
                number = self._session.add(request.requests[piece])
            except OutriderError as error:
                rows, tokens = rows - more_rows, tokens - more_tokens
                self._withdraw(request)
                self._deliver([(request, error)])
                continue
            self._active[number] = request, piece
        streams = any(request.streams for request, _ in self._active.values())
        self._session.ahead = 1 if streams else AHEAD

    def _collect(self, updates: Sequence[Update]) -> Events:
        """Count tokens and pieces, and return the events to deliver."""
        events: Events = []
        for update in updates:
            request, piece = self._active[update.id]
            done = update.hypotheses is not None
            if done or update.error is not None:
                del self._active[update.id]
            self.tokens += len(update.tokens)
            self.pieces += done
            if request.cancelled:
                continue
            if update.error is not None:
                self._withdraw(request)
                events.append((request, update.error))
            elif done or request.streams:
                events.append((request, (piece, update)))
        return events


def _fail(requests: Iterable[RequestHandle], error: Exception) -> Events:
    """End requests that are not cancelled with an error."""
    events: Events = []
    for request in requests:
        if not request.cancelled:
            request.cancelled = True
            events.append((request, error))
    return events
