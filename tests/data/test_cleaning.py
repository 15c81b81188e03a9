"""Cleaning: what is changed, what is dropped, and that it is told."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.data.cleaning import PairCleaner
from outrider.data.config import CleanConfig
from outrider.data.normalise import normalise, normalise_verbatim
from outrider.data.records import Row
from outrider.errors import DataError


def keep(*pairs: tuple[str, str], **config: object) -> tuple[list[tuple[str, str]], dict[str, int]]:
    cleaner = PairCleaner(CleanConfig.model_validate(config))
    kept = cleaner.keep([Row("f", n, *pair) for n, pair in enumerate(pairs, 1)])
    return kept, {reason: dropped.count for reason, dropped in cleaner.drops.reasons.items()}


@pytest.mark.parametrize(
    ("config", "pair", "reason"),
    [
        ({}, ("  \t", "b"), "empty"),
        ({"min_characters": 3}, ("ab", "abc"), "too short"),
        ({"max_characters": 3}, ("abc", "abcd"), "too long"),
        ({"max_ratio": 2.0}, ("ab", "abcde"), "length ratio"),
        ({"drop_equal": True}, ("same", " same"), "source equals target"),
    ],
)
def test_each_reason(config: dict[str, object], pair: tuple[str, str], reason: str) -> None:
    assert keep(pair, **config) == ([], {reason: 1})
    swapped = (pair[1], pair[0])
    assert keep(swapped, **config) == ([], {reason: 1})


def test_nothing_else_is_dropped() -> None:
    fine = [("a", "a"), ("a", "b" * 9), ("x" * 5000, "y" * 5000), ("a", "b")]
    assert keep(*fine) == (fine, {})
    assert keep(("a", "b" * 100), max_ratio=None) == ([("a", "b" * 100)], {})


def test_duplicates_are_dropped_after_the_first() -> None:
    kept, dropped = keep(("a", "b"), ("b", "a"), ("a ", "b"), ("a", "c"), ("a", "b"))
    assert kept == [("a", "b"), ("b", "a"), ("a", "c")]
    assert dropped == {"duplicate": 2}
    kept, dropped = keep(("a", "b"), ("a", "b"), drop_duplicates=False)
    assert len(kept) == 2
    assert not dropped


def test_the_first_example_of_a_reason_is_kept() -> None:
    cleaner = PairCleaner(CleanConfig(on_bad_text="drop"))
    cleaner.keep([Row("file", 7, "a\x1b[31m", "", ""), Row("file", 8, "", "b")])
    cleaner.keep([Row("file", 9, "", "bad", "not UTF-8")])
    reasons = cleaner.drops.reasons
    assert reasons["empty"].count == 2
    assert reasons["empty"].example == "file, line 7: a\ufffd[31m | "
    assert reasons["not UTF-8"].example == "file, line 9:  | bad"
    assert cleaner.drops.total() == 3


@pytest.mark.parametrize("fault", ["not UTF-8", "NUL byte", "not JSON"])
def test_bad_text_is_an_error_unless_told_to_drop(fault: str) -> None:
    row = Row("file", 7, "", "bad", fault)
    with pytest.raises(
        DataError, match=rf"file, line 7: {fault}; mend the line, or set data\.clea"
    ):
        PairCleaner(CleanConfig()).keep([row])
    assert PairCleaner(CleanConfig(on_bad_text="drop")).keep([row]) == []


def test_an_over_long_line_is_never_an_error() -> None:
    cleaner = PairCleaner(CleanConfig())
    assert cleaner.keep([Row("file", 7, "", "beginning", "too long")]) == []
    assert cleaner.drops.reasons["too long"].count == 1


@given(st.text())
def test_normalised_text_is_clean(text: str) -> None:
    clean = normalise(text)
    assert clean == " ".join(clean.split())
    assert not any(unicodedata.category(c) == "Cc" for c in clean)
    assert normalise(clean) == clean
    assert unicodedata.is_normalized("NFC", clean)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("e\u0301\t\u00e9\u00a0x", "\u00e9 \u00e9 x"),
        ("a\x07b\x9fc", "abc"),
        ("line\x0bfeed\u2028here", "line feed here"),
        ("👩‍👩‍👧 می‌خواهم", "👩‍👩‍👧 می‌خواهم"),
    ],
)
def test_normalise(text: str, clean: str) -> None:
    assert normalise(text) == clean


def test_verbatim_keeps_white_space() -> None:
    assert normalise_verbatim("a\r\n\n\tb  \x07\x00 e\u0301") == "a\n\n\tb   \u00e9"


def test_a_tower_of_marks_does_not_stall() -> None:
    marks = "\u0301\u0323" * 80_000
    started = time.monotonic()
    clean = normalise(f"a{marks}b")
    assert time.monotonic() - started < 2
    assert clean.startswith("\u1ea1")
    assert len(clean) < 40
    assert clean.endswith("b")
