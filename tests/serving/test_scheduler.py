"""The order of requests in the queue."""

from collections import Counter

from outrider.serving.request import Priority, RequestHandle
from outrider.serving.scheduler import FairQueue
from tests.helpers.requests import handle


def job(pieces: int, priority: Priority = Priority.normal, tokens: int = 10) -> RequestHandle:
    return handle(*[tokens] * pieces, priority=priority)


def test_a_short_request_waits_for_one_sentence_of_a_document() -> None:
    queue = FairQueue()
    book, note = job(1000), job(1)
    queue.add(book)
    queue.add(note)
    assert [queue.take()[0] for _ in range(3)] == [book, note, book]


def test_all_pieces_are_taken_in_order() -> None:
    queue = FairQueue()
    jobs = [job(n, priority) for n in (1, 3, 2) for priority in Priority]
    for one in jobs:
        queue.add(one)
    seen: dict[RequestHandle, list[int]] = {}
    while queue:
        one, piece = queue.take()
        seen.setdefault(one, []).append(piece)
    assert seen == {one: [*range(len(one.requests))] for one in jobs}


def test_priorities_share_turns_by_their_weight() -> None:
    queue = FairQueue()
    for priority in Priority:
        queue.add(job(1000, priority))
    turns = Counter(queue.take()[0].priority for _ in range(210))
    assert turns == {Priority.low: 10, Priority.normal: 40, Priority.high: 160}


def test_turns_are_weighted_by_tokens() -> None:
    queue = FairQueue()
    queue.add(job(1000, Priority.high, tokens=40))
    queue.add(job(1000, Priority.normal, tokens=10))
    turns = Counter(queue.take()[0].priority for _ in range(100))
    assert turns == {Priority.high: 50, Priority.normal: 50}


def test_an_idle_priority_accumulates_no_turns() -> None:
    queue = FairQueue()
    queue.add(job(1000, Priority.high))
    for _ in range(500):
        queue.take()
    queue.add(job(1000, Priority.low))
    assert Counter(queue.take()[0].priority for _ in range(34))[Priority.low] == 2


def test_a_cancelled_request_is_skipped() -> None:
    queue = FairQueue()
    gone, here = job(5), job(2)
    queue.add(gone)
    queue.add(here)
    queue.take()
    gone.cancelled = True
    assert [queue.take()[0] for _ in range(2)] == [here, here]
    assert not queue
