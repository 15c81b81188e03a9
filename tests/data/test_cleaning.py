"""Cleaning: changed lines, dropped lines, and the report of them."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.data.cleaning import PairCleaner, count_repeats
from outrider.data.config import CleanConfig
from outrider.data.corpus import Row
from outrider.errors import ConfigError, DataError
from outrider.text.normalise import normalise, normalise_verbatim


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
        ({"max_repeats": 2}, ("so it is", "so it is so it is so it is"), "repeats itself"),
        ({"max_repeats": 3}, ("\u54c8\u54c8\u54c8\u54c8", "It is funny."), "repeats itself"),
    ],
)
def test_each_reason(config: dict[str, object], pair: tuple[str, str], reason: str) -> None:
    assert keep(pair, **config) == ([], {reason: 1})
    swapped = (pair[1], pair[0])
    assert keep(swapped, **config) == ([], {reason: 1})


@pytest.mark.parametrize(
    ("text", "times"),
    [("", 1), ("a b a", 1), ("a a b b b", 3), ("x a b a b a b", 3), ("a b c a b c c", 2),
     ("\u4e00\u4e8c\u4e00\u4e8c", 2), ("no, no, no", 2), ("aaaa", 1)],
)  # fmt: skip
def test_repeats_are_counted(text: str, times: int) -> None:
    assert count_repeats(text) == times


@given(st.lists(st.sampled_from("abc"), max_size=24))
def test_repeats_equal_those_found_by_brute_force(words: list[str]) -> None:
    found = max(
        (times for size in range(1, 9) for start in range(len(words)) for times in range(1, 25)
         if len(part := words[start : start + size * times]) == size * times
         and part == part[:size] * times),
        default=1,
    )  # fmt: skip
    assert count_repeats(" ".join(words)) == found


def test_repeats_on_both_sides_are_kept() -> None:
    fine = [("ha ha ha ha ha", "he he he he he"), ("one", "one two one two")]
    assert keep(*fine, max_repeats=2) == (fine, {})


def test_other_languages_are_dropped() -> None:
    pytest.importorskip("py3langid")
    english = "This is an ordinary sentence about nothing at all."
    french = "Bonjour tout le monde, comment allez-vous aujourd'hui ?"
    pairs = [("Wer da?", english), ("Was ist das?", french), ("Ja", "OK")]
    kept, dropped = keep(*pairs, target_language="en")
    assert (kept, dropped) == ([pairs[0], pairs[2]], {"target in another language": 1})
    kept, dropped = keep((french, french), (english, french), source_language="fr")
    assert (len(kept), dropped) == (1, {"source in another language": 1})
    with pytest.raises(ConfigError, match=r"data\.clean\.target_language: got 'xx', expected one"):
        keep(target_language="xx")


def test_other_pairs_are_kept() -> None:
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
def test_bad_text_is_an_error_unless_dropped(fault: str) -> None:
    row = Row("file", 7, "", "bad", fault)
    with pytest.raises(DataError, match=rf"file, line 7: {fault}; fix the line, or set data\.clea"):
        PairCleaner(CleanConfig()).keep([row])
    assert PairCleaner(CleanConfig(on_bad_text="drop")).keep([row]) == []


def test_an_over_long_line_is_never_an_error() -> None:
    cleaner = PairCleaner(CleanConfig())
    assert cleaner.keep([Row("file", 7, "", "beginning", "too long")]) == []
    assert cleaner.drops.reasons["too long"].count == 1


@given(st.text())
def test_normalised_text_passes_cleaning(text: str) -> None:
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


def test_many_combining_marks_are_normalised_quickly() -> None:
    marks = "\u0301\u0323" * 80_000
    started = time.monotonic()
    clean = normalise(f"a{marks}b")
    assert time.monotonic() - started < 2
    assert clean.startswith("\u1ea1")
    assert len(clean) < 40
    assert clean.endswith("b")
