"""Queries about scores against their definitions, on arrays and on tensors as on a GPU."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.queries import Argmax, Forbidden, LogProbs, Nothing, Path, Sample, TopK
from outrider.options import Sampling

WORDS = 7
scores = st.builds(
    lambda seed, rows, places, levels: (
        np.random.default_rng(seed).integers(0, levels, (rows, places, WORDS)).astype(np.float32)
    ),
    st.integers(0, 99),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(2, 50),
)


def both(question, array: np.ndarray):
    """Return the answer, after checking that array and tensor give the same."""
    found = question.answer(array.copy())
    there = question.answer(torch.from_numpy(array.copy()))
    assert type(found) is type(there)
    for one, other in zip(found, there, strict=True):
        if one is None or (one and isinstance(np.ravel(one)[0], (np.integer, np.bool_))):
            assert one == other
        elif one:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return found


@given(array=scores, always=st.sets(st.integers(0, WORDS - 1), max_size=WORDS - 2))
def test_argmax_is_the_first_of_equal_scores(array, always) -> None:
    found = both(Argmax(Forbidden(tuple(always)), True), array)
    allowed = [token for token in range(WORDS) if token not in always]
    for row, tokens in enumerate(found.tokens):
        for place, token in enumerate(tokens):
            one = array[row, place].tolist()
            assert token == max(allowed, key=lambda t: (one[t], -t))
            total = math.log(sum(math.exp(score) for score in one))
            assert found.log_probs[row][place] == pytest.approx(one[token] - total, abs=1e-4)


def test_near_marks_other_scores_within_the_margin() -> None:
    array = np.array([[[100, 99.5, 0], [100, 98, 0], [0.1, 0.095, -5]]], dtype=np.float32)
    assert both(Argmax(closeness=0.01), array).near == [[True, False, True]]


def test_rows_that_may_not_end_yet() -> None:
    array = np.zeros((2, 3, WORDS), dtype=np.float32)
    array[..., 4], array[..., 2] = 9, 5
    forbidden = Forbidden((), (4,), (2, 0))
    assert both(Argmax(forbidden), array).tokens == [[2, 2, 4], [4, 4, 4]]
    assert forbidden.everywhere(1) is None
    assert Forbidden((3,), (4,), (2, 1)).everywhere(1) == (3, 4)
    assert Forbidden((3,), (4,), (0, 0)).everywhere(5) == (3,)


@given(array=scores, count=st.integers(1, WORDS + 2))
def test_top_k_is_sorted_and_equal_scores_by_id(array, count) -> None:
    array = array[:, :1]
    found = TopK(count).answer(array.copy())
    for row, tokens in enumerate(found.tokens):
        one = array[row, 0].tolist()
        order = sorted(range(WORDS), key=lambda token: (-one[token], token))
        assert [one[token] for token in tokens] == [one[token] for token in order[:count]]
        assert len(set(tokens)) == min(count, WORDS)
        for value in {one[token] for token in tokens}:
            equals = [token for token in tokens if one[token] == value]
            assert equals == sorted(equals)
        total = math.log(sum(math.exp(score) for score in one))
        expected = [one[token] - total for token in tokens]
        assert found.log_probs[row] == pytest.approx(expected, abs=1e-4)


@given(array=scores, token=st.integers(0, WORDS - 1))
def test_log_probabilities_of_given_tokens(array, token) -> None:
    tokens = [[token] * array.shape[1]] * array.shape[0]
    alone = np.array(LogProbs(tokens).answer(array.copy()))
    probs = np.exp(array) / np.exp(array).sum(-1, keepdims=True)
    np.testing.assert_allclose(alone, np.log(probs[..., token]), atol=1e-4)
    ends = (token, (token + 1) % WORDS)
    any_end = LogProbs(tokens, ends).answer(torch.from_numpy(array.copy()))
    np.testing.assert_allclose(any_end, np.log(probs[..., list(ends)].sum(-1)), atol=1e-4)


@given(array=scores, number=st.floats(0, 1, exclude_max=True))
def test_samples_and_paths_are_the_same_on_tensors(array, number) -> None:
    rows, places = array.shape[:2]
    # No two are equal: on a GPU the order of equal scores is undefined.
    array = array + np.linspace(0, 0.5, array.size, dtype=np.float32).reshape(array.shape)
    both(Sample(Sampling(0.7, top_k=3), [number] * rows, log_probs=True), array[:, :1])
    uniform = [[[number] * places] * 2] * rows
    found = both(Path(Forbidden((1,)), True, uniform), array)
    assert all(token != 1 for paths in found.drawn for path in paths for token in path)
    assert np.shape(found.drawn) == (rows, 2, places)


def test_the_query_nothing_has_no_answer() -> None:
    assert Nothing().answer(np.zeros((1, 1, 2))) is None
