"""Splitting loses nothing, knows what does not end a sentence, and joining restores the spaces."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.runtime.sentences import cut, join, split


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rains. ", "We stay."],
        ["Really? ", "Yes! ", "Good."],
        ["He said: “Stop!” ", "She did not."],
        ["(It was late.) ", "They left."],
        ["Wait... ", "What?"],
        ["今天下雨。", "我们不出去。"],
        ["「行きますか？」", "「はい。」", "彼は言った。"],
        ["价格是3.14元。", "很贵！"],
        ["¿Dónde está? ", "¡Aquí!"],
        ["यह एक घर है। ", "वह बड़ा है।"],
        ["هل تفهم؟ ", "نعم."],
        ["One line\n", "\n", "another line"],
        ["It was 1999. ", "Then it ended."],
    ],
)
def test_sentences_end_here(sentences: list[str]) -> None:
    assert split("".join(sentences)) == sentences


@pytest.mark.parametrize(
    "text",
    [
        "Pi is 3.14 and e is 2.72 today.",
        "Mr. Smith met Dr. Jones.",
        "J. R. R. Tolkien wrote it.",
        "The U.S. Army is here.",
        "Wir kommen am 3. Mai an.",
        "Das ist z.B. Unsinn.",
        "See Fig. 3 for this.",
        "“Really?” he asked.",
        "Well... maybe not.",
        "Version 2.0.1 is out",
        "See example.com for it",
        "円周率は３．１４です",
        "",
        "   ",
    ],
)
def test_no_sentence_ends_inside(text: str) -> None:
    assert split(text) == ([text] if text else [])


@given(st.text(alphabet=st.sampled_from(" \n\t.!?…。！」”\"'aA1你,．"), max_size=60))
def test_the_parts_are_the_text(text: str) -> None:
    assert "".join(split(text)) == text
    assert all(split(text))


@given(st.text(max_size=80), st.integers(1, 9))
def test_cut_pieces_fit_and_are_the_text(text: str, longest: int) -> None:
    pieces = cut(text, lambda piece: len(piece) <= longest)
    assert "".join(pieces) == text
    assert all(len(piece.strip()) <= longest for piece in pieces)


def test_cuts_at_clauses_then_at_spaces() -> None:
    fits = 20
    assert cut("one two, three four, five six", lambda p: len(p) <= fits)[0].endswith(", ")
    assert cut("one two three four five six", lambda p: len(p) <= fits)[0].endswith(" ")


@pytest.mark.parametrize(
    "unit", ["a", ".", " ", "a. ", "“", "。", ",", "\n", "a.b", "\u0301", ". A"]
)
def test_huge_lines_take_linear_time(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    start = time.process_time()
    assert "".join(split(text)) == text
    cut(text, lambda piece: len(piece) <= 512)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("parts", "gaps", "text"),
    [
        (["A.", "B."], [" "], "A. B."),
        (["A.", "B."], ["\n\n"], "A.\n\nB."),
        (["A.", "B."], [""], "A. B."),
        (["甲。", "乙。"], [" "], "甲。乙。"),
        (["甲。", "乙。"], [""], "甲。乙。"),
        (["甲。", "乙。"], ["\n"], "甲。\n乙。"),
        (["가.", "나."], [""], "가. 나."),
        (["A.", "", "B."], ["\n", "\n"], "A.\n\nB."),
        (["A."], [], "A."),
    ],
)
def test_gaps_follow_the_target(parts: list[str], gaps: list[str], text: str) -> None:
    assert join(parts, gaps) == text
