"""Division of texts at pauses."""

from itertools import pairwise

import pytest

from outrider.documents.pauses import columns, cut, joint


def parts(text: str, shares: list[float], **options: list) -> list[str]:
    places = [0, *cut(text, shares, **options), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize(
    ("text", "shares", "expected"),
    [
        ("one two three four", [1, 1], ["one two ", "three four"]),
        ("Well yes, of course it is", [1, 1], ["Well yes, ", "of course it is"]),
        ("Yes. No comma, here it goes on", [1, 2], ["Yes. ", "No comma, here it goes on"]),
        ("we all went because it rained so", [1, 1], ["we all went ", "because it rained so"]),
        ("a long road of the city", [3, 2], ["a long road ", "of the city"]),
        ("one two", [1, 1, 1], ["one ", "two", ""]),
        ("word", [1, 1], ["word", ""]),
        ("", [1, 1], ["", ""]),
        ("我们在1984年", [1, 2], ["我们", "在1984年"]),
        ("我们用Python", [1, 1], ["我们用", "Python"]),
        ("他说「你好」。再见", [1, 1], ["他说「你好」。", "再见"]),
        ("今天很好，我们走吧", [1, 1], ["今天很好，", "我们走吧"]),
    ],
)
def test_places(text: str, shares: list[float], expected: list[str]) -> None:
    assert parts(text, shares) == expected


def test_a_number_is_not_divided() -> None:
    for at in range(1, 9):
        assert cut("他123456789他", [at, 10 - at]) == [11]


def test_a_place_that_is_wanted() -> None:
    text = "one two three four five six"
    assert parts(text, [1, 1], wanted=[8]) == ["one two ", "three four five six"]
    assert parts(text, [1, 1], wanted=[27])[1] != ""


def test_kept_parts_are_whole_and_tags_together() -> None:
    text = "one two three four five six"
    outside = (
        ["one ", "two three four five six"],
        ["one two three four five ", "six"],
    )
    assert parts(text, [1, 1], whole=[(4, 23)]) in outside
    assert parts(text, [1, 1], together=[(10, 18)]) in (
        ["one two ", "three four five six"],
        ["one two three four ", "five six"],
    )
    assert parts(text, [1, 1], together=[(0, 27)]) == parts(text, [1, 1])


def test_lines_are_joined_with_a_space_between_words() -> None:
    assert (joint("a", "b"), joint("a ", "b"), joint("我", "们"), joint("我", "b")) == (
        " ",
        "",
        "",
        " ",
    )
    assert (columns("ab"), columns("我们")) == (2, 4)
