"""Whose turn it is."""

from collections import Counter

from outrider.decoding import Request
from outrider.serving.admission import Job, Priority
from outrider.serving.driver import FairQueue


def job(pieces: int, priority: Priority = Priority.normal, tokens: int = 10) -> Job:
    return Job([Request()] * pieces, [(1, tokens)] * pieces, lambda event: None, priority)


def test_a_short_request_waits_for_one_sentence_of_a_book() -> None:
    queue = FairQueue()
    book, note = job(1000), job(1)
    queue.add(book)
    queue.add(note)
    assert [queue.take()[0] for _ in range(3)] == [book, note, book]


def test_pieces_come_in_order_and_none_is_lost() -> None:
    queue = FairQueue()
    jobs = [job(n, priority) for n in (1, 3, 2) for priority in Priority]
    for one in jobs:
        queue.add(one)
    seen: dict[int, list[int]] = {}
    while queue:
        one, piece = queue.take()
        seen.setdefault(one.number, []).append(piece)
    assert seen == {one.number: [*range(len(one.requests))] for one in jobs}


def test_priorities_share_by_their_weight_and_nobody_starves() -> None:
    queue = FairQueue()
    for priority in Priority:
        queue.add(job(1000, priority))
    turns = Counter(queue.take()[0].priority for _ in range(210))
    assert turns == {Priority.low: 10, Priority.normal: 40, Priority.high: 160}


def test_large_pieces_count_for_more() -> None:
    queue = FairQueue()
    queue.add(job(1000, Priority.high, tokens=40))
    queue.add(job(1000, Priority.normal, tokens=10))
    turns = Counter(queue.take()[0].priority for _ in range(100))
    assert turns == {Priority.high: 50, Priority.normal: 50}


def test_nobody_saves_up_turns_while_away() -> None:
    queue = FairQueue()
    queue.add(job(1000, Priority.high))
    for _ in range(500):
        queue.take()
    queue.add(job(1000, Priority.low))
    assert Counter(queue.take()[0].priority for _ in range(34))[Priority.low] == 2


def test_who_has_left_gets_no_turn() -> None:
    queue = FairQueue()
    gone, here = job(5), job(2)
    queue.add(gone)
    queue.add(here)
    queue.take()
    gone.cancelled = True
    assert [queue.take()[0] for _ in range(2)] == [here, here]
    assert not queue
