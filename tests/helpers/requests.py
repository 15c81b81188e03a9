"""Requests for tests of the queue and of admission."""

from outrider.decoding import Request
from outrider.runtime.result import Work
from outrider.serving.request import Priority, RequestHandle


def handle(*tokens: int, priority: Priority = Priority.normal) -> RequestHandle:
    """Return a request of one text; each piece needs one row and the given number of tokens."""
    work = Work([Request(needs=(1, size)) for size in tokens], lambda pieces: [])
    return RequestHandle([work], priority=priority)
