"""Places of normalised characters and of tokens, and composition of alignments."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.text.alignment import Link, compose, original_offsets, token_ranges
from outrider.text.normalise import normalise

MARKS = "a\u0301\u0323b \t\n\x00\u200b한\u1112\u1161\u11abé\u00e9中ﬁ\u0085"


@given(st.text(st.sampled_from(MARKS), max_size=30))
@example("  two   words ")
@example("e\u0301 x")
def test_normalised_characters_have_their_original_places(text: str) -> None:
    normal = normalise(text)
    offsets = original_offsets(text, normal)
    assert len(offsets) == len(normal) + 1
    assert offsets == sorted(offsets)
    for place, character in enumerate(normal):
        if unicodedata.combining(character) or "\u1160" <= character <= "\u11ff":
            continue  # has the place of its letter
        base = unicodedata.normalize("NFD", character)[0]
        found = unicodedata.normalize("NFD", text[offsets[place]])[0]
        assert found == base or (character == " " and found.isspace())


def test_tokens_have_the_characters_that_they_add() -> None:
    pieces = ["", " Caf", "é", "", " noir"]

    def decode_batch(rows: object) -> list[str]:
        return ["".join(pieces[token] for token in row).strip() for row in rows]  # type: ignore

    text, ranges = token_ranges(decode_batch, [1, 2, 3, 4])
    assert [text[first:last] for first, last in ranges] == ["Caf", "é", "", "noir"]


def test_a_character_of_two_tokens_belongs_to_the_last() -> None:
    """A prefix that ends inside a character decodes to another character."""
    texts = {1: "a", 2: "a\ufffd", 3: "aé"}
    text, ranges = token_ranges(lambda rows: [texts[len(row)] for row in rows], [7, 8, 9])
    assert (text, ranges) == ("aé", [(0, 1), (1, 1), (1, 2)])


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (Link((0, 2), (5, 6)), [Link((10, 12), (5, 6))]),
        (Link((1, 4), (5, 6)), [Link((0, 9), (5, 6))]),  # overlaps the second link more
        (Link((7, 9), (5, 6)), []),
    ],
)
def test_links_are_composed_where_they_overlap_most(second: Link, expected: list[Link]) -> None:
    first = (Link((10, 12), (0, 2)), Link((0, 9), (2, 5)))
    assert compose(first, (second,)) == tuple(expected)
