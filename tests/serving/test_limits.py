"""Admission: the measured speed, the expected time and refused requests."""

from pathlib import Path

import httpx
import pytest

from outrider.serving import limits
from outrider.serving.engine import Engine
from outrider.serving.limits import Admission, Limits
from outrider.serving.registry import read_spec
from outrider.serving.request import BusyError
from tests.helpers.requests import handle
from tests.helpers.served import serving


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(limits, "monotonic", lambda: now[0])
    return now


def test_the_speed_follows_the_last_windows(clock) -> None:
    admission = Admission(Limits(batch_tokens=50))
    work = handle(*[100] * 20)
    admission.reserve(work)
    for piece in range(9):
        clock[0] += 0.125
        admission.finish_piece(work, piece)
    assert admission.speed == pytest.approx(800)
    for piece in range(9, 13):  # half as fast, without idle time
        clock[0] += 0.25
        admission.finish_piece(work, piece)
    assert admission.speed == pytest.approx(600)


def test_the_time_to_the_first_finished_piece_is_not_measured(clock) -> None:
    admission = Admission(Limits(batch_tokens=50))
    works = [handle(100) for _ in range(64)]
    for one in works:
        admission.reserve(one)
    clock[0] += 3.0  # all requests are decoded together
    for one in works:
        clock[0] += 0.02
        admission.finish_piece(one, 0)
        admission.release(one)
    assert admission.speed == pytest.approx(5000)


def test_an_idle_model_does_not_lower_the_speed(clock) -> None:
    admission = Admission(Limits(batch_tokens=10_000))
    for seconds in (0.125, 5.0):
        work = handle(*[100] * 9)
        admission.reserve(work)
        for piece in range(9):
            clock[0] += seconds
            admission.finish_piece(work, piece)
        admission.release(work)
    assert admission.speed == pytest.approx(800)


def test_the_expected_time_of_a_new_request() -> None:
    admission = Admission(Limits())
    admission.speed = 100.0
    for one in (handle(200), handle(*[50] * 100)):
        admission.reserve(one)
    assert admission.expected(10) == pytest.approx((10 + 200 + 50) / 100)
    assert admission.expected(300) == pytest.approx((300 + 200 + 300) / 100)
    assert admission.expected(9000) == pytest.approx((9000 + 200 + 5000) / 100)


def test_a_request_that_would_be_late_is_refused() -> None:
    admission = Admission(Limits())
    admission.speed = 100.0
    admission.check(10_000, 1.0)  # no other request: always admitted
    admission.reserve(handle(400))
    admission.check(100, 10.0)
    admission.check(101, 10.0)  # the speed may be underestimated
    admission._windows = limits.SURE
    with pytest.raises(BusyError, match="to finish this one in time") as refused:
        admission.check(101, 10.0)
    assert refused.value.retry_after == 6


def test_reservations_are_released() -> None:
    admission = Admission(Limits())
    work = handle(10, 20)
    admission.reserve(work)
    admission.finish_piece(work, 0)
    assert (len(admission), admission.tokens) == (1, 20)
    admission.release(work)
    admission.release(work)
    assert (len(admission), admission.tokens) == (0, 0)


def test_the_typical_size_is_estimated_and_robust_to_one_document(clock) -> None:
    admission = Admission(Limits(seconds=10))
    for _ in range(500):
        admission.observe(30, 120)
    assert admission.estimate(60) == pytest.approx(240, rel=0.05)
    admission.observe(100_000, 400_000)
    admission.speed, admission._windows = 100.0, limits.SURE
    admission.reserve(handle(300))
    assert admission.overload() is None
    admission.reserve(handle(300))
    assert admission.overload() is None, "the result is cached"
    clock[0] += 1
    assert admission.overload() is not None


def test_an_overloaded_server_refuses_before_parsing(translator: Path, monkeypatch) -> None:
    engine = Engine([read_spec(f"en-de={translator}")])
    busy = BusyError("too much", retry_after=7)
    body = {"q": "two men", "source": "en", "target": "de"}
    with serving(engine) as url, httpx.Client(base_url=url) as client:
        assert client.post("/translate", json=body).status_code == 200
        monkeypatch.setattr(Admission, "overload", lambda self: busy)
        for path in ("/translate", "/v1/completions", "/v1/chat/completions", "/watch"):
            answer = client.post(path, json={"anything": 1})
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "7")
            assert "connection" not in answer.headers, "the client may ask again on this one"
        for path in ("/health", "/languages", "/v1/models", "/"):
            assert client.get(path).status_code == 200
        metrics = client.get("/metrics").text
    assert 'outrider_requests_total{route="/watch",status="503"} 1.0' in metrics


def test_a_model_that_is_not_loaded_is_not_overloaded(translator: Path, writer: Path) -> None:
    engine = Engine([read_spec(f"en-de={translator}"), read_spec(str(writer))])
    assert engine.overload() is None
