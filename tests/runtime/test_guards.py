"""Faults of translations: those of published threads are found, and clean texts pass."""

import gzip
from itertools import islice

import pytest

from outrider.runtime.guards import FAULTS, check, rank

LOOPS = [
    # LibreTranslate 46, 183, 167, 168, 566; argos-translate 318, 324, 428, 444; EasyNMT 38.
    ("ensalada", "salad " * 40 + "sala salad", "en"),
    ("заранее", "pre-pre- " * 4 + "pre- " * 90, "en"),
    ("increasingly", "cada vez " * 12 + "cada cada vez cada cada", "es"),
    ("ko re", "ko re ko re ko re ko re", "en"),
    ("quase quase", "almost almost almost almost almost", "en"),
    ("never", "nunca jamás nunca jamás nunca jamás jamás jamás jamás", "es"),
    ("no", "no no no no no nobody no no no no no", "en"),
    ("enrolled", "matriculados matriculados matriculados", "pt"),
    (
        "What It Is: Think of it like a smart trick to uncover stuff on the internet.",
        "(笑声) " + "(掌声) " * 50,
        "zh",
    ),
    ("Saya pergi ke pasar.", "I'm sorry I'm sorry I'm sorry I'm sorry", "en"),
    # A single word twice: argos-translate 316, mozilla/translate 2, firefox-translations 210.
    ("Hello", "Merhaba Merhaba", "tr"),
    ("mother", "мать мать", "ru"),
    ("Hallo", "Hello hello", "en"),
    ("Hello World", "З З З З З З З З З З З!", "ru"),
    ("no", "nonononononononono", "en"),
    ("The bird sings.", "鸟儿歌唱歌唱歌唱歌唱歌唱", "zh"),
]


@pytest.mark.parametrize(("source", "translation", "target"), LOOPS)
def test_loops_of_published_threads_are_found(source, translation, target) -> None:
    assert check(source, translation, target=target) == "loop"


@pytest.mark.parametrize(
    ("source", "translation", "target"),
    [
        ("Ha ha ha ha!", "Ha ha ha ha!", "de"),
        ("very, very, very good", "sehr, sehr, sehr gut", "de"),
        ("Thank you", "谢谢", "zh"),
        ("ba-ba-ba-ba-ba-ba-bank", "ba-ba-ba-ba-ba-ba-banco", "pt"),
        ("hahahahahahahaha", "jajajajajajajaja", "es"),
        ("OK", "OK", "pt"),
        ("Barack Obama", "Barack Obama", "pt"),
        ("https://example.org/a?b=c&d=e", "https://example.org/a?b=c&d=e", "zh"),
        ("git commit --amend", "git commit --amend", "de"),
        ("42", "42", "pt"),
        ("...", "...", "pt"),
        ("", "", "pt"),
        ("北京", "Beijing", "en"),
        ("No.", "Não.", "pt"),
        ("He used iPhone and Windows.", "他用 iPhone 和 Windows。", "zh"),
    ],
)
def test_what_looks_like_a_fault_but_is_none_passes(source, translation, target) -> None:
    assert check(source, translation, target=target) is None


LONG = "The committee will meet again next week to decide how the money should be spent, and why."


@pytest.mark.parametrize(
    ("source", "translation", "target", "fault"),
    [
        (LONG, "O comitê se reunirá novamente na próxima semana para", "pt", "truncated"),
        (LONG, "O comitê se reunirá.", "pt", "truncated"),
        (LONG, LONG, "pt", "copied"),  # LibreTranslate 567
        ("我们明天去北京看朋友。", "我们明天去北京看朋友。", "en", "copied"),
        (LONG, "委员会下周将再次开会，决定如何使用这笔钱，以及为什么。", "pt", "language"),
        ("我们明天去北京看朋友。", "Комитет соберётся снова", "en", "language"),
        ("да, я видел :)", "♪", "en", "empty"),  # argos-translate 299
        ("word", "", "pt", "empty"),
    ],
)
def test_other_faults_are_found(source, translation, target, fault) -> None:
    assert check(source, translation, target=target) == fault


def test_a_translation_that_reached_its_limit_is_truncated() -> None:
    assert check("Two men.", "Dois homens", finish="length", target="pt") == "truncated"
    assert check("Two men.", "Dois homens.", finish="eos", target="pt") is None


def test_a_language_of_the_same_script_is_detected_in_long_texts() -> None:
    pytest.importorskip("py3langid", reason="needs py3langid, of outrider[language]")
    german = "Der Ausschuss wird nächste Woche wieder zusammentreten und über das Geld entscheiden."
    assert check(LONG, german, target="pt", several=True) == "language"
    assert check(LONG, german, target="pt") is None, "one pair: only if it resembles the source"
    assert check(LONG, german, target="de", several=True) is None


def test_a_source_in_the_target_language_is_its_own_translation() -> None:
    pytest.importorskip("py3langid", reason="needs py3langid, of outrider[language]")
    assert check(LONG, LONG, target="en") is None


def test_without_a_target_language_the_other_checks_remain() -> None:
    assert check(LONG, "Комитет соберётся снова на следующей неделе, чтобы решить всё.") is None
    assert check(LONG, "la " * 30) == "loop"


def test_ranks_are_distinct_and_no_fault_is_the_least() -> None:
    assert [rank(None), *map(rank, FAULTS)] == [*range(len(FAULTS) + 1)]


@pytest.mark.parametrize("pair", ["en de", "de zh", "zh en", "fr cs"])
def test_human_translations_pass(pair, corpora) -> None:
    source, target = pair.split()
    texts = []
    for code in (source, target):
        with gzip.open(corpora / f"flores/devtest.{code}.gz", "rt", encoding="utf-8") as file:
            texts.append([line.strip() for line in islice(file, 250)])
    faults = [check(*both, target=target, several=True) for both in zip(*texts, strict=True)]
    assert sum(fault is not None for fault in faults) <= 1
