"""Who is let in: what is known of the load, and what follows from it."""

from pathlib import Path

import httpx
import pytest

from outrider.decoding import Request
from outrider.serving import admission
from outrider.serving.admission import Admission, Job
from outrider.serving.answers import BusyError
from outrider.serving.engine import Engine
from outrider.serving.limits import Limits
from outrider.serving.registry import read_spec
from tests.helpers.served import serving


def job(*tokens: int) -> Job:
    return Job([Request()] * len(tokens), [(1, one) for one in tokens], lambda event: None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(admission, "monotonic", lambda: now[0])
    return now


def test_the_speed_is_what_was_done_lately(clock) -> None:
    books = Admission(Limits(batch_tokens=50))
    work = job(*[100] * 20)
    books.enter(work)
    for piece in range(9):
        clock[0] += 0.125
        books.piece(work, piece)
    assert books.speed == pytest.approx(800)
    for piece in range(9, 13):  # half as fast, and kept busy
        clock[0] += 0.25
        books.piece(work, piece)
    assert books.speed == pytest.approx(600)


def test_the_time_until_the_first_is_done_is_not_slowness(clock) -> None:
    books = Admission(Limits(batch_tokens=50))
    works = [job(100) for _ in range(64)]
    for one in works:
        books.enter(one)
    clock[0] += 3.0  # all of them are decoded together
    for one in works:
        clock[0] += 0.02
        books.piece(one, 0)
        books.leave(one)
    assert books.speed == pytest.approx(5000)


def test_an_idle_model_is_not_taken_for_a_slow_one(clock) -> None:
    books = Admission(Limits(batch_tokens=10_000))
    for seconds in (0.125, 5.0):
        work = job(*[100] * 9)
        books.enter(work)
        for piece in range(9):
            clock[0] += seconds
            books.piece(work, piece)
        books.leave(work)
    assert books.speed == pytest.approx(800)


def test_a_newcomer_waits_for_a_piece_of_everybody_or_for_as_much_as_it_asks() -> None:
    books = Admission(Limits())
    books.speed = 100.0
    for one in (job(200), job(*[50] * 100)):
        books.enter(one)
    assert books.expected(10) == pytest.approx((10 + 200 + 50) / 100)
    assert books.expected(300) == pytest.approx((300 + 200 + 300) / 100)
    assert books.expected(9000) == pytest.approx((9000 + 200 + 5000) / 100)


def test_who_would_be_late_is_refused_at_once() -> None:
    books = Admission(Limits())
    books.speed = 100.0
    books.check(10_000, 1.0)  # nobody is in: it is tried
    books.enter(job(400))
    books.check(100, 10.0)
    books.check(101, 10.0)  # the speed may be underestimated as yet
    books._windows = admission.SURE
    with pytest.raises(BusyError, match="not be done in time") as refused:
        books.check(101, 10.0)
    assert refused.value.retry_after == 6


def test_the_books_are_empty_again() -> None:
    books = Admission(Limits())
    work = job(10, 20)
    books.enter(work)
    books.piece(work, 0)
    assert (len(books), books.tokens) == (1, 20)
    books.leave(work)
    books.leave(work)
    assert (len(books), books.tokens) == (0, 0)


def test_what_is_usual_is_learned_and_a_book_hardly_moves_it(clock) -> None:
    books = Admission(Limits(seconds=10))
    for _ in range(500):
        books.learn(30, 120)
    assert books.guess(60) == pytest.approx(240, rel=0.05)
    books.learn(100_000, 400_000)
    books.speed, books._windows = 100.0, admission.SURE
    books.enter(job(300))
    assert books.full() is None
    books.enter(job(300))
    assert books.full() is None, "it was looked at a moment ago"
    clock[0] += 1
    assert books.full() is not None


def test_an_overloaded_server_refuses_at_its_door(translator: Path, monkeypatch) -> None:
    engine = Engine([read_spec(f"en-de={translator}")])
    busy = BusyError("too much", retry_after=7)
    body = {"q": "two men", "source": "en", "target": "de"}
    with serving(engine) as url, httpx.Client(base_url=url) as client:
        assert client.post("/translate", json=body).status_code == 200
        monkeypatch.setattr(Admission, "full", lambda self: busy)
        for path in ("/translate", "/v1/completions", "/v1/chat/completions", "/watch"):
            answer = client.post(path, json={"anything": 1})
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "7")
            assert "connection" not in answer.headers, "the client may ask again on this one"
        for path in ("/health", "/languages", "/v1/models", "/"):
            assert client.get(path).status_code == 200
        metrics = client.get("/metrics").text
    assert 'outrider_requests_total{route="/watch",status="503"} 1.0' in metrics


def test_a_model_that_is_not_loaded_is_not_full(translator: Path, writer: Path) -> None:
    engine = Engine([read_spec(f"en-de={translator}"), read_spec(str(writer))])
    assert engine.full() is None
