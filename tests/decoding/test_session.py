"""Sessions: requests join, wait and leave in any order; each gives the result of decoding alone."""

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding import DecodeConfig, Hypothesis, Request, Session, Statistics, decode
from outrider.decoding.controller import Controller
from outrider.decoding.request import may_draft
from outrider.decoding.statistics import Round
from outrider.errors import ConfigError, InputError, ModelError
from outrider.torch.backend import TorchBackend
from outrider.torch.models.folder import parts_of
from tests.helpers import native_tiny, tiny
from tests.helpers.reference_backend import ReferenceBackend

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "scored": {"scores": True},
    "sampled": {"strategy": "sample", "temperature": 0.9},
    "cold": {"temperature": 0.6, "top_k": 4},
    "nucleus": {"top_p": 0.8, "scores": True},
    "best of 3": {"temperature": 1.2, "candidates": 3, "n_best": 2},
    "best of 2 in tandem": {"mode": "tandem", "temperature": 1.1, "candidates": 2},
    "beams": {"beams": 3, "n_best": 2},
    "one beam": {"beams": 1},
    "tandem": {"mode": "tandem"},
    "tandem of 3": {"draft_tokens": 3},
    "drawn in tandem": {"mode": "tandem", "strategy": "sample", "temperature": 1.1},
    "trusting": {"gamma": 0.4, "draft_tokens": 4},
    "drafted": {"decoder": "drafter", "candidates": 2},
    "parallel": {"mode": "parallel"},
}
LIMITS: dict[str, dict[str, Any]] = {
    "free": {},
    "silent": {"suppress": (3, 4)},
    "long": {"min_new_tokens": 5},
    "forced": {"force_eos": True, "max_new_tokens": 6},
}


def config(way: str, limit: str) -> DecodeConfig:
    values = {**WAYS[way], **LIMITS[limit]}
    if values.get("mode") == "parallel" or "decoder" in values:
        values.pop("min_new_tokens", None)
    return DecodeConfig(**values)


@st.composite
def jobs(draw: Any, *, words: int) -> Request:
    own = config(draw(st.sampled_from(list(WAYS))), draw(st.sampled_from(list(LIMITS))))
    ids = st.integers(2, words - 1)
    prompt = draw(st.lists(ids, max_size=4)) if own.mode != "parallel" else []
    return Request(
        source=[*draw(st.lists(ids, min_size=1, max_size=6)), 1],
        prompt=prompt,
        max_new_tokens=draw(st.integers(1, 14)),
        seed=draw(st.integers(0, 9)),
        config=own,
        ends=draw(st.sampled_from([(), (), (5,)])),
    )


Event = Request | int
"""A new request; a number of steps; or, if negative, the cancellation of a request."""


def play(session: Session, events: list[Event]) -> tuple[dict[int, list[Hypothesis]], set[int]]:
    """Run the events in order; return the hypotheses of each request and the cancelled requests."""
    said: dict[int, list[int]] = {}
    found: dict[int, list[Hypothesis]] = {}
    stopped: set[int] = set()

    def step() -> None:
        for update in session.step():
            assert update.error is None
            assert update.id not in found, "news of a row that was done"
            said.setdefault(update.id, []).extend(update.tokens)
            if update.hypotheses is not None:
                found[update.id] = update.hypotheses
                assert tuple(said[update.id]) == update.hypotheses[0].tokens
            else:
                assert update.tokens

    numbers: list[int] = []
    for event in events:
        if isinstance(event, Request):
            numbers.append(session.add(event))
        elif event < 0 and numbers:
            number = numbers[event % len(numbers)]
            if number not in found:
                stopped.add(number)
                session.cancel(number)
        else:
            for _ in range(abs(event)):
                step()
    while session.busy:
        step()
    assert set(found) == set(numbers)
    assert (session.running, session.waiting) == (0, 0)
    return found, stopped


def check(
    backend: Any, events: list[Event], rows: int, *, ahead: int = 1, scores: float = 1e-4
) -> None:
    """Text, finish and score of each request equal those of decoding it alone."""
    found, stopped = play(Session(backend, rows=rows, ahead=ahead), events)
    requests = [event for event in events if isinstance(event, Request)]
    for number, request in enumerate(requests):
        assert request.config is not None
        ((*alone,),) = decode(backend, [request], request.config)
        if number in stopped and found[number] != alone:
            (cut, *_) = found[number]
            several = request.config.strategy == "beam" or request.config.candidates > 1
            assert cut.finish == "cancelled" or several
            if not several:
                assert alone[0].tokens[: len(cut.tokens)] == cut.tokens
            continue
        assert [(h.tokens, h.finish) for h in found[number]] == [
            (h.tokens, h.finish) for h in alone
        ]
        for ours, theirs in zip(found[number], alone, strict=True):
            assert (ours.score is None) == (theirs.score is None)
            if ours.score is not None:
                assert ours.score == pytest.approx(theirs.score, abs=scores)


def stories(words: int) -> st.SearchStrategy[list[Event]]:
    """Several requests, each followed by some steps or a cancellation."""
    then = st.sampled_from([0, 0, 0, 1, 2, 4, -1, -2, -5])
    pairs = st.lists(st.tuples(jobs(words=words), then), min_size=3, max_size=9)
    return pairs.map(lambda all_: [event for pair in all_ for event in pair])


@settings(max_examples=150)
@given(
    events=stories(6),
    rows=st.integers(1, 7),
    ahead=st.integers(1, 4),
    table=st.integers(0, 9),
    compact_threshold=st.booleans(),
)
def test_joined_rows_equal_single_rows_on_the_reference_backend(
    events, rows, ahead, table, compact_threshold
) -> None:
    backend = ReferenceBackend(7, seed=table, block=6, skill=0.7, ctc=True)
    backend.compact_threshold = 0.6 if compact_threshold else 0.0
    check(backend, events, rows, ahead=ahead, scores=1e-9)


@settings(max_examples=40)
@given(events=stories(6), rows=st.integers(1, 5), length=st.integers(9, 14))
def test_rows_near_the_last_position_equal_single_rows(events, rows, length) -> None:
    check(ReferenceBackend(7, length, block=6, skill=0.7, ctc=True), events, rows)


MODELS = ["marian", "learned", "grouped"]


def parts(kind: str) -> tuple[Any, dict[str, Any]]:
    model = native_tiny.build(kind)
    return model, {"drafter": native_tiny.build_drafter(model), "ctc": native_tiny.build_ctc(model)}


@lru_cache
def torch_backend(kind: str) -> TorchBackend:
    model, others = parts(kind)
    return TorchBackend(model, **others)


@lru_cache
def native_backend(kind: str) -> Any:
    native = pytest.importorskip("outrider.backends.native")
    if not native.is_installed():
        pytest.skip("outrider-native is not installed")
    model, others = parts(kind)
    return native.NativeBackend(parts_of(model, **others))


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=30)
@given(events=stories(tiny.VOCABULARY), rows=st.integers(1, 7))
def test_joined_rows_equal_single_rows_in_float32(kind, events, rows) -> None:
    check(torch_backend(kind), events, rows)


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=80)
@given(events=stories(tiny.VOCABULARY), rows=st.integers(1, 7), ahead=st.integers(1, 4))
def test_joined_rows_are_bit_identical_to_single_rows_in_int8(kind, events, rows, ahead) -> None:
    check(native_backend(kind), events, rows, ahead=ahead, scores=0.0)


def test_a_finished_row_is_replaced_immediately() -> None:
    """With two slots, three rows of 2, 6 and 4 tokens need six rounds, the minimum."""
    backend = ReferenceBackend(6)
    config = DecodeConfig(min_new_tokens=9, max_new_tokens=9)
    session = Session(backend, config, rows=2)
    for tokens in (2, 6, 4):
        session.add(Request(source=(tokens,), max_new_tokens=tokens))
    rounds = 0
    while session.busy:
        session.step()
        rounds += 1
    assert rounds == 6


def test_a_request_joins_a_running_batch() -> None:
    session = Session(ReferenceBackend(6), DecodeConfig(min_new_tokens=9, max_new_tokens=9))
    first = session.add(Request(source=(2,)))
    assert [update.id for update in session.step()] == [first]
    second = session.add(Request(source=(3,)))
    assert [update.id for update in session.step()] == [first, second]


def test_an_invalid_request_is_refused_when_added() -> None:
    session = Session(ReferenceBackend(6, 8), DecodeConfig(max_new_tokens=4))
    good = session.add(Request(source=(2,)))
    wrong: list[tuple[Request, type[Exception], str]] = [
        (Request(max_new_tokens=0), ConfigError, "max_new_tokens"),
        (Request(prompt=(2,) * 9), InputError, "leaves no position"),
        (Request(config=DecodeConfig(mode="tandem")), ModelError, "no drafter"),
        (Request(config=DecodeConfig(suppress=(6,))), ConfigError, "suppress"),
        (
            Request((2,), config=DecodeConfig(mode="parallel")),
            ModelError,
            "needs a CTC decoder or a drafter",
        ),
    ]
    for request, kind, words in wrong:
        with pytest.raises(kind, match=words):
            session.add(request)
    news = [update for _ in range(4) for update in session.step()]
    assert {update.id for update in news} == {good}
    assert not session.busy


@pytest.mark.parametrize("gamma", [0.0, 0.4])
def test_each_round_is_reported_once_with_its_tokens(gamma: float) -> None:
    config = DecodeConfig(mode="tandem", gamma=gamma, draft_tokens=3, max_new_tokens=20)
    session = Session(ReferenceBackend(7, block=4, skill=0.7), config, rows=2)
    numbers = [session.add(Request(source=(n,))) for n in range(2, 6)]
    told: dict[int, list[Round]] = {number: [] for number in numbers}
    at = 0.0
    while session.busy:
        for update in session.step():
            assert update.at >= at
            at = update.at
            told[update.id] += update.rounds
            brought = [
                token
                for one in update.rounds
                for token in (*one.drafted[: one.accepted], one.token)
                if token not in (None, session.backend.eos)
            ]
            assert tuple(brought) == update.tokens
            if update.hypotheses is not None:
                assert tuple(told[update.id]) == update.hypotheses[0].rounds
    assert sum(map(len, told.values())) > len(numbers)


class Fragile(ReferenceBackend):
    """A backend that fails on token 3 in a source."""

    def encode(self, source: Any, **options: Any) -> Any:
        if any(3 in row for row in source):
            raise InputError("3 cannot be read")
        return super().encode(source, **options)


@pytest.mark.parametrize("way", ["greedy", "best of 3", "beams"])
def test_a_row_that_cannot_be_encoded_fails_alone(way: str) -> None:
    session = Session(Fragile(6), DecodeConfig(**WAYS[way], max_new_tokens=4))
    numbers = [session.add(Request(source=(n,))) for n in (2, 3, 4)]
    news = []
    while session.busy:
        news += session.step()
    assert [str(update.error) for update in news if update.error] == ["3 cannot be read"]
    done = {update.id for update in news if update.hypotheses is not None}
    assert done == {numbers[0], numbers[2]}


def test_a_deadline_returns_the_tokens_so_far(monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("outrider.decoding.session.monotonic", lambda: clock[0])
    config = DecodeConfig(min_new_tokens=30, max_new_tokens=30)
    session = Session(ReferenceBackend(6), config, rows=1)
    for source, deadline in ((2, 5.0), (3, 2.0), (4, None)):
        session.add(Request(source=(source,), deadline=deadline))
    found = {}
    while session.busy:
        for update in session.step():
            if update.hypotheses is not None:
                found[update.id] = update.hypotheses[0]
        clock[0] += 1.5
    alone = decode(ReferenceBackend(6), [Request(source=(n,)) for n in (2, 3, 4)], config)
    assert (found[0].tokens, found[0].finish) == (alone[0][0].tokens[:4], "deadline")
    assert (found[1].tokens, found[1].finish) == ((), "deadline")
    assert found[2] == alone[2][0]


def test_a_controller_does_not_change_the_text() -> None:
    """In one session, phases with drafting and with plain steps."""
    backend = ReferenceBackend(7, block=6, skill=0.9)
    requests = [Request(source=(n % 7, n % 5), max_new_tokens=3 + n % 9) for n in range(60)]
    stats = Statistics()
    session = Session(
        backend,
        DecodeConfig(mode="tandem"),
        rows=4,
        controllers={"drafter": Controller(6)},
        stats=stats,
    )
    found, _ = play(session, list(requests))
    alone = decode(backend, requests, DecodeConfig())
    assert [[h.tokens for h in found[n]] for n in range(60)] == [
        [h.tokens for h in row] for row in alone
    ]
    assert stats.rounds


def test_the_needs_of_a_request_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, config = ReferenceBackend(6), DecodeConfig(beams=3, max_new_tokens=4)
    request = Request((2, 1)).sized(backend, config)
    assert request.needs == (3, 3 * (2 + 4))
    monkeypatch.setattr("outrider.decoding.session.needs", lambda *given: pytest.fail("again"))
    session = Session(backend, rows=4)
    session.add(request)
    assert len(session.drain()) == 1


@pytest.mark.parametrize(
    ("values", "drafts"),
    [
        ({}, True),
        ({"mode": "tandem"}, True),
        ({"mode": "tandem", "draft_tokens": 3}, False),
        ({"gamma": 0.5}, False),
        ({"temperature": 0.5}, False),
        ({"beams": 2}, False),
        ({"decoder": "drafter"}, False),
    ],
)
def test_drafting_is_optional_only_if_the_text_is_the_same(values: dict, drafts: bool) -> None:
    config, drafter = DecodeConfig(**values), SimpleNamespace(longest=4)
    exact, rounded = (SimpleNamespace(drafts=drafter, epsilon=error) for error in (0.0, 1e-2))
    assert may_draft(exact, config) is drafts
    assert may_draft(rounded, config.changed(strict=True)) is drafts
    assert not may_draft(rounded, config)
    assert not may_draft(SimpleNamespace(drafts=None, epsilon=0.0), config)
