"""Answers computed in the native core equal those of `query.answer` on its logits."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.queries import (
    Argmax,
    Best,
    Chosen,
    Forbidden,
    Grouped,
    Logits,
    LogProbs,
    Nothing,
    Part,
    Sample,
    TopK,
)
from outrider.errors import InputError
from outrider.options import Sampling
from outrider.torch.models.folder import parts_of
from tests.helpers import native_tiny, tiny

core = pytest.importorskip("outrider_native", reason="outrider-native is not installed")

from outrider.backends import native_answers  # noqa: E402
from outrider.backends.native import NativeBackend  # noqa: E402

WORDS = 37
SETS = core.instruction_sets()
ids = st.lists(st.integers(0, WORDS - 1), max_size=4).map(tuple)
numbers = st.floats(0, 1, exclude_max=True)


@pytest.fixture(scope="module", params=SETS)
def backends(request) -> list[NativeBackend]:
    model = native_tiny.build("marian")
    return [
        NativeBackend(parts_of(model), instruction_set=request.param, threads=threads)
        for threads in (1, 2, 3)
    ]


@st.composite
def forbidden(draw: Any, rows: int) -> Forbidden:
    early = st.just(()) | st.lists(st.integers(0, 3), min_size=rows, max_size=rows).map(tuple)
    return Forbidden(draw(ids), draw(ids), draw(early))


@st.composite
def questions(draw: Any, rows: int, places: int) -> Any:
    """A query for a number of rows, each fed `places` tokens."""
    kind = draw(st.sampled_from(["likeliest", "given"] + ["top", "draw"] * (places == 1)))
    if kind == "likeliest":
        return Argmax(draw(forbidden(rows)), draw(st.booleans()))
    if kind == "top":
        return TopK(draw(st.sampled_from([1, 4, 12, WORDS, 99])), draw(forbidden(rows)))
    if kind == "given":
        tokens = [[draw(st.integers(0, 5)) for _ in range(places)] for _ in range(rows)]
        return LogProbs(tokens, draw(st.sampled_from([(), (3,), (3, 4), (5, 1, 2)])))
    sampling = Sampling(
        draw(st.sampled_from([1.0, 0.3, 1e-60, 5.0, 1e300])),
        draw(st.none() | st.sampled_from([1, 5, 99])),
        draw(st.none() | st.sampled_from([1.0, 0.9, 0.3, 1e-9])),
    )
    uniform = [draw(numbers) for _ in range(rows)]
    return Sample(sampling, uniform, draw(forbidden(rows)), draw(st.booleans()))


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=3e-6)


def same(query: Any, found: Any, expected: Any, counts: list[int]) -> None:
    """Compare the tokens of each row exactly and log-probabilities up to rounding."""
    if isinstance(query, LogProbs):
        for one, other, count in zip(found, expected, counts, strict=True):
            close(one, other[: min(count, len(one))])
    elif isinstance(query, TopK):
        assert isinstance(found, Best)
        close(found.log_probs, expected.log_probs)
        for one, other, scores in zip(found.tokens, expected.tokens, found.log_probs, strict=True):
            finite = [n for n, score in enumerate(scores) if score > -math.inf]
            assert [one[n] for n in finite] == [other[n] for n in finite]
            assert len(set(one)) == len(other)
    else:
        assert isinstance(found, Chosen)
        for one, other, count in zip(found.tokens, expected.tokens, counts, strict=True):
            assert one == other[:count]
        assert (found.log_probs is None) == (expected.log_probs is None)
        pairs = zip(found.log_probs or (), expected.log_probs or (), counts, strict=False)
        for mine, theirs, count in pairs:
            close(mine, theirs[:count])


@settings(max_examples=120)
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_answers_equal_those_computed_from_logits(backends, data, seed) -> None:
    dice = np.random.default_rng(seed)
    rows = data.draw(st.integers(1, 5))
    source = [[3 + n, 1] for n in range(rows)]
    counts = data.draw(st.lists(st.integers(1, 4), min_size=rows, max_size=rows))
    last = data.draw(st.booleans())
    if last or data.draw(st.booleans()):
        counts = counts if last else [1] * rows
        query = data.draw(questions(rows, 1))
    else:
        query = data.draw(questions(rows, max(counts)))
    fed = [dice.integers(0, WORDS, count).tolist() for count in counts]
    real = [1] * rows if last else counts

    def state(backend: NativeBackend) -> Any:
        return backend.encode(source, capacity=8)

    plain = backends[0]
    logits_BTV = plain.extend(fed, state(plain), Logits(), last=last)
    expected = query.answer(logits_BTV.copy())
    found = [backend.extend(fed, state(backend), query, last=last) for backend in backends]
    assert found[0] == found[1] == found[2], "bits depend on the number of threads"
    same(query, found[0], expected, real)


@pytest.mark.parametrize("top_k", [None, 3, 100, 900])
@pytest.mark.parametrize("top_p", [None, 0.99, 0.7, 0.01])
def test_samples_from_a_large_vocabulary_equal_those_computed_from_logits(top_k, top_p) -> None:
    """More candidates than the core keeps sorted while it reads a row."""
    rows, dice = 40, np.random.default_rng(0)
    model = native_tiny.rough(tiny.seq2seq(vocab_size=700, hidden_size=32), 0)
    backend = NativeBackend(parts_of(model), threads=2)
    source = [dice.integers(3, 700, 4).tolist() for _ in range(rows)]
    fed = [[token] for token in dice.integers(3, 700, rows).tolist()]
    for temperature in (0.2, 1.0, 4.0):
        query = Sample(Sampling(temperature, top_k, top_p), dice.random(rows).tolist())
        logits_BTV = backend.extend(fed, backend.encode(source, capacity=1), Logits())
        found = backend.extend(fed, backend.encode(source, capacity=1), query)
        assert found == query.answer(logits_BTV.copy())
        assert len({token for (token,) in found.tokens}) > 10 or (top_k or 700) < 10
    ask_top = TopK(top_k or 64)
    found_top = backend.extend(fed, backend.encode(source, capacity=1), ask_top)
    same(ask_top, found_top, ask_top.answer(logits_BTV.copy()), [1] * rows)


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_grouped_queries_equal_separate_calls(backends, data, seed) -> None:
    dice = np.random.default_rng(seed)
    rows = data.draw(st.integers(1, 6))
    order = data.draw(st.permutations(range(rows)))
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=2))})
    parts, fed = [], [[] for _ in range(rows)]
    for start, end in pairwise(cuts):
        places = data.draw(st.integers(1, 3))
        members = order[start:end]
        parts.append(Part(list(members), places, data.draw(questions(len(members), places))))
        for row in members:
            fed[row] = dice.integers(0, WORDS, places).tolist()
    source = [[3 + n, 1] for n in range(rows)]
    backend = backends[seed % 3]
    query = Grouped(tuple(parts))
    found = backend.extend(fed, backend.encode(source, capacity=8), query)
    assert len(found) == len(parts)
    for (members, _, one), answer in zip(parts, found, strict=True):
        state = backend.encode([source[row] for row in members], capacity=8)
        assert answer == backend.extend([fed[row] for row in members], state, one)


def test_no_logits_leave_the_core(backends, monkeypatch) -> None:
    """Without queries that need logits, the core's `extend` is never called."""

    class Deaf:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            assert name != "extend", "scores were asked for"
            return getattr(self.inner, name)

    backend = backends[0]
    monkeypatch.setattr(backend, "core", Deaf(backend.core))
    state = backend.encode([[3, 1], [4, 1]], capacity=30)
    fed = [[5], [6]]
    asks: list[Any] = [Nothing(), TopK(4), Sample(Sampling(), [0.1, 0.9]), LogProbs([[3], [4]])]
    for query in [*asks, Argmax(log_probs=True), Argmax()]:
        backend.extend(fed, state, query)
        backend.extend(fed, state, query, last=True)
    parts = Part([0], 1, TopK(2)), Part([1], 1, Sample(Sampling(), [0.5]))
    backend.extend(fed, state, Grouped(parts))
    assert state.lengths == [13, 13]
    with pytest.raises(AssertionError, match="scores were asked for"):
        backend.extend(fed, state, Grouped((Part([0], 1, Logits()),)))


def test_drafts_are_verified_with_log_probabilities_in_one_call(monkeypatch) -> None:
    model = native_tiny.build("marian")
    backend = NativeBackend(parts_of(model, native_tiny.build_drafter(model)), threads=2)
    drafts = backend.drafts
    assert drafts is not None
    states = [backend.encode([[3, 1], [4, 1]], capacity=20, drafting=True) for _ in range(2)]
    query = Argmax(Forbidden((5,), (1,), (2, 0)), log_probs=True)
    found = drafts.draft_and_verify(
        [3, 4], states[0], [3, 1], query, cached=[0, 0], min_survival=0.0
    )
    fed = [[token, *guesses] for token, guesses in zip([3, 4], found.drafted, strict=True)]
    assert found.best == backend.extend(fed, states[1], query)
    assert [len(row) for row in found.best.log_probs or ()] == [len(row) for row in fed]


wrong: dict[str, tuple[Any, str]] = {
    "forbidden id": (TopK(2, Forbidden((WORDS,))), "token 37 is not"),
    "forbidden to other rows": (
        Sample(Sampling(), [0.1] * 2, Forbidden((), (1,), (1,))),
        "one number for each row",
    ),
    "no tokens": (TopK(0), "expected at least one token"),
    "other numbers": (Sample(Sampling(), [0.5]), "expected one number for each row"),
    "no temperature": (Sample(Sampling(0.0), [0.5, 0.5]), "above zero"),
    "given to other rows": (LogProbs([[3]]), "expected tokens for each row"),
    "given a wrong id": (LogProbs([[3], [WORDS]]), "token 37 is not"),
    "row twice": (Grouped((Part([0, 0], 1, TopK(1)),)), "two queries include the same row"),
    "no such row": (Grouped((Part([2], 1, TopK(1)),)), "no row 2"),
}


@pytest.mark.parametrize("name", wrong)
def test_an_invalid_query_is_refused_and_the_state_is_unchanged(backends, name) -> None:
    query, message = wrong[name]
    state = backends[0].encode([[3, 1], [4, 1]], capacity=8)
    with pytest.raises(InputError, match=message):
        backends[0].extend([[5], [6]], state, query)
    assert state.lengths == [0, 0]


def test_queries_that_the_core_cannot_answer_use_logits(backends) -> None:
    assert native_answers.to_core(Grouped((Part([0], 1, Logits()),)), 2) is None
    assert native_answers.to_core(Argmax(closeness=0.1), 2) is None
