"""Repetition rate and length ratio of small texts, counted by hand."""

import pytest

from outrider.errors import InputError
from outrider_lab.bench.modes.repetition import length_ratio, repetition_rate


def test_counts_words_equal_to_the_word_before() -> None:
    assert repetition_rate(["der der Hund der", "ja ja ja", "", "nein"]) == pytest.approx(3 / 8)


def test_the_end_of_one_text_is_not_before_the_next() -> None:
    assert repetition_rate(["so", "so"]) == 0


def test_no_words_repeat_nothing() -> None:
    assert repetition_rate([]) == repetition_rate(["", " "]) == 0


def test_length_ratio_compares_whole_corpora() -> None:
    assert length_ratio(["a b c", ""], ["a b", "c d e f"]) == pytest.approx(3 / 6)


def test_unequal_counts_are_refused() -> None:
    with pytest.raises(InputError, match="1 translations against 2 references"):
        length_ratio(["a"], ["a", "b"])


def test_references_without_words_are_refused() -> None:
    with pytest.raises(InputError, match="the references contain no words"):
        length_ratio(["a"], [""])
