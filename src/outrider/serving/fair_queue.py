"""Whose turn it is: a document's sentences queue like anybody's.

Requests of one priority take turns, a piece each, so that a short one behind a book waits for one
sentence of it and not for the book. Between priorities it is stride scheduling (Waldspurger and
Weihl, 1995): each has a clock that a piece moves on by tokens / weight, and the slowest clock is
served. Nobody starves, and nobody saves up turns while away.
"""

from collections import deque

from outrider.serving.job import Job, Priority

__all__ = ["FairQueue"]


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
