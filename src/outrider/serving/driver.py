"""The thread of one model: between two rounds it lets people in and out, and tells the news.

The session does the rest: what a row says is what it says alone, and whether to draft is chosen
from what it costs at this load (`decoding/controller.py`).

Whose turn it is: a document's sentences queue like anybody's.

Requests of one priority take turns, a piece each, so that a short one behind a book waits for one
sentence of it and not for the book. Between priorities it is stride scheduling (Waldspurger and
Weihl, 1995): each has a clock that a piece moves on by tokens / weight, and the slowest clock is
served. Nobody starves, and nobody saves up turns while away.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from outrider.decoding import Backend, Controller, Session, Statistics, Update
from outrider.errors import OutriderError
from outrider.serving.admission import Delta, Done, Event, Failed, Job, Priority
from outrider.serving.answers import BusyError
from outrider.serving.limits import Limits

__all__ = ["EngineThread", "Events", "FairQueue"]


class FairQueue:
    """Jobs that have pieces left to begin."""

    def __init__(self) -> None:
        self._jobs: dict[Priority, deque[Job]] = {priority: deque() for priority in Priority}
        self._clock = dict.fromkeys(Priority, 0.0)
        self._now = 0.0

    def __bool__(self) -> bool:
        return self.peek() is not None

    def add(self, job: Job) -> None:
        """Let a job queue behind those of its priority."""
        jobs = self._jobs[job.priority]
        if not jobs:
            self._clock[job.priority] = max(self._clock[job.priority], self._now)
        jobs.append(job)

    def peek(self) -> Job | None:
        """Return the job whose next piece is next; None where nothing waits."""
        for jobs in self._jobs.values():
            while jobs and jobs[0].cancelled:
                jobs.popleft()
        waiting = [priority for priority, jobs in self._jobs.items() if jobs]
        if not waiting:
            return None
        return self._jobs[min(waiting, key=lambda one: (self._clock[one], -one))][0]

    def take(self) -> tuple[Job, int]:
        """Take the next piece: its job, and which it is."""
        job = self.peek()
        assert job is not None
        jobs, piece = self._jobs[job.priority], job.taken
        jobs.popleft()
        job.taken += 1
        if job.taken < len(job.requests):
            jobs.append(job)
        self._now = self._clock[job.priority]
        self._clock[job.priority] += job.needs[piece][1] / job.priority
        return job, piece

    def clear(self) -> list[Job]:
        """Forget everybody, and say who it was."""
        left = [job for jobs in self._jobs.values() for job in jobs if not job.cancelled]
        for jobs in self._jobs.values():
            jobs.clear()
        return left


AHEAD = 8
"""Tokens that greedy rows say in a round while nobody watches: a newcomer waits for no more."""
SPARE = 8
"""This part of the rows may wait in the session itself, which opens several together."""

Events = list[tuple[Job, Event]]


class EngineThread:
    """Decodes jobs on a thread of its own until it is closed."""

    def __init__(
        self,
        backend: Backend,
        limits: Limits,
        *,
        controller: Controller | None,
        deliver: Callable[[Events], None],
        name: str = "model",
    ) -> None:
        """Start the thread.

        Args:
            backend: Who computes.
            limits: How much at once.
            controller: Chooses whether to draft; None where no model drafts.
            deliver: Told the news of every round, on the thread of this driver.
            name: What the thread is called.
        """
        self._backend, self._limits, self._controller = backend, limits, controller
        self._deliver = deliver
        self.stats = Statistics()
        self._session = self._open()
        self._queue = FairQueue()
        self._inside: dict[int, tuple[Job, int]] = {}
        """Pieces in the session, by their number there."""
        self._taken = [0, 0]
        """Rows and tokens of those."""
        self._wake = threading.Condition()
        self._new: list[Job] = []
        self._gone: list[Job] = []
        self._closing = False
        self.rounds = self.pieces = self.tokens = self.cancelled = 0
        """Since the start: rounds, pieces decoded, tokens written, jobs called off."""
        self._thread = threading.Thread(target=self._run, name=f"outrider-{name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Pieces that are being decoded."""
        return self._session.running

    def submit(self, job: Job) -> None:
        """Queue a job; its news come by `deliver`."""
        with self._wake:
            if self._closing:
                raise BusyError("the model is being put away; try again", retry_after=1)
            self._new.append(job)
            self._wake.notify()

    def cancel(self, job: Job) -> None:
        """Stop a job before the next round; nothing more is told of it."""
        with self._wake:
            job.cancelled = True
            self._gone.append(job)
            self._wake.notify()

    def close(self) -> None:
        """Stop after this round; whoever is not done is told so."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _open(self) -> Session:
        limits = self._limits
        return Session(
            self._backend,
            rows=limits.rows,
            tokens=limits.batch_tokens,
            controller=self._controller,
            stats=self.stats,
        )

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._new or self._gone or self._closing or self._busy):
                    self._wake.wait()
                new, self._new = self._new, []
                gone, self._gone = self._gone, []
                closing = self._closing
            for job in new:
                self._queue.add(job)
            if closing:
                self._fail(BusyError("the server is going down; try again", retry_after=5))
                return
            try:
                self._call_off(gone)
                self._feed()
                news = self._news(self._session.step())
            except Exception as error:
                # Out of memory, or a fault: whoever was in the session hears of it, nobody else.
                news = self._give_up(error)
            self.rounds += 1
            if news:
                self._deliver(news)

    @property
    def _busy(self) -> bool:
        return self._session.busy or bool(self._queue)

    def _call_off(self, gone: Sequence[Job]) -> None:
        self.cancelled += len(gone)
        for job in gone:
            self._withdraw(job)

    def _withdraw(self, gone: Job) -> None:
        """Stop all pieces of a job."""
        gone.cancelled = True
        for number, (job, _) in self._inside.items():
            if job is gone:
                self._session.cancel(number)

    def _feed(self) -> None:
        """Let pieces into the session as far as they fit."""
        limits = self._limits
        while (job := self._queue.peek()) is not None:
            rows, tokens = job.needs[job.taken]
            most = limits.rows + limits.rows // SPARE, limits.batch_tokens
            taken = self._taken
            if self._inside and (taken[0] + rows > most[0] or taken[1] + tokens > most[1]):
                break
            job, piece = self._queue.take()
            try:
                number = self._session.add(job.requests[piece])
            except OutriderError as error:
                self._deliver([(job, Failed(error))])
                self._withdraw(job)
                continue
            self._inside[number] = job, piece
            self._taken = [taken[0] + rows, taken[1] + tokens]
        watched = any(job.streams for job, _ in self._inside.values())
        self._session.ahead = 1 if watched else AHEAD

    def _news(self, updates: Sequence[Update]) -> Events:
        news: Events = []
        for update in updates:
            job, piece = self._inside[update.id]
            ended = update.hypotheses is not None or update.error is not None
            if ended:
                del self._inside[update.id]
                rows, tokens = job.needs[piece]
                self._taken = [self._taken[0] - rows, self._taken[1] - tokens]
            self.tokens += len(update.tokens)
            self.pieces += update.hypotheses is not None
            if job.cancelled:
                continue
            if job.streams and update.error is None:  # an end token is news too
                news.append((job, Delta(piece, update.tokens, update.rounds, update.at)))
            if update.error is not None:
                self._withdraw(job)
                news.append((job, Failed(update.error)))
            elif update.hypotheses is not None:
                news.append((job, Done(piece, update.hypotheses)))
        return news

    def _give_up(self, error: Exception) -> Events:
        """Fail whoever is in the session, and begin a new one for the others."""
        jobs = {job.number: job for job, _ in self._inside.values() if not job.cancelled}
        self._inside.clear()
        self._taken = [0, 0]
        self._session = self._open()
        for job in jobs.values():
            job.cancelled = True
        return [(job, Failed(error)) for job in jobs.values()]

    def _fail(self, error: Exception) -> None:
        waiting: Events = [(job, Failed(error)) for job in self._queue.clear()]
        inside = {id(job) for job, _ in waiting}
        news = waiting + [one for one in self._give_up(error) if id(one[0]) not in inside]
        if news:
            self._deliver(news)
