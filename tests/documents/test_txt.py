"""Plain text: lines, and paragraphs with hard line breaks."""

import re
import time
from random import Random

import pytest

from outrider.documents.marked import MarkedText
from outrider.documents.txt import read
from tests.helpers.generated_texts import DOCUMENTS, marking, mirroring, sentence

WRAPPED = (
    "  It was the best of times, it was the worst of times, it was\n"
    "  the age of wisdom, it was the age of foolishness, it was the\n"
    "  epoch of belief.\n"
)


def texts(content: str) -> list[str]:
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    return [marked.text for marked in document.texts]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("  one  \r\n\r\n\ttwo", ["one", "two"]),
        ("1\n---\na\n", ["a"]),
        ("", []),
        ("\n\n", []),
        (WRAPPED, [" ".join(WRAPPED.split())]),
        (
            "A line that is quite long and ends with its sentence, as lists do.\n" * 2,
            ["A line that is quite long and ends with its sentence, as lists do."] * 2,
        ),
        ("- " + "word " * 12 + "\n- " + "word " * 12, [("- " + "word " * 12).strip()] * 2),
        (
            "今天天气很好，我们去公园散步，然后在湖边的小餐馆里吃了一顿很\n好的午饭。\n",
            ["今天天气很好，我们去公园散步，然后在湖边的小餐馆里吃了一顿很好的午饭。"],
        ),
    ],
)
def test_lines_and_paragraphs(content: str, expected: list[str]) -> None:
    assert texts(content) == expected


def test_a_wrapped_paragraph_is_wrapped_again() -> None:
    document = read(f"Title\n\n{WRAPPED}\nend".encode())
    words = "Es war die beste aller Zeiten. " * 4
    written = document.write([MarkedText("Titel"), MarkedText(words.strip()), MarkedText("Ende")])
    lines = written.decode().split("\n")
    assert lines[0] == "Titel"
    assert lines[-1] == "Ende"
    assert all(line.startswith("  Es war") for line in lines[2:-2])
    assert " ".join(" ".join(lines[2:-2]).split()) == words.strip()


def test_other_spaces_and_line_ends_stay() -> None:
    content = "  one \t\r\n\r\n\r\n  two\r\n three"
    document = read(content.encode())
    assert document.write([MarkedText("a\nb"), MarkedText("c"), MarkedText("d")]) == (
        b"  a b \t\r\n\r\n\r\n  c\r\n d"
    )


@pytest.mark.parametrize("content", [" " * 500_000, "a " * 200_000, "a\n" * 50_000, "\r" * 200_000])
def test_giant_files_take_linear_time(content: str) -> None:
    start = time.process_time()
    document = read(content.encode())
    document.write([MarkedText(text.text + "!") for text in document.texts])
    assert time.process_time() - start < 6


def check(seed: int) -> None:
    random = Random(seed)
    lines: list[str] = []
    for _ in range(random.randint(1, 10)):
        if random.random() < 0.3:
            lines += re.findall(r".{1,60}(?:\s|\Z)", " ".join(sentence(random) for _ in range(6)))
        lines.append(
            random.choice(["", "", "\t", "---", sentence(random), "  " + sentence(random)])
        )
    content = random.choice(["\n", "\r\n"]).join(lines)
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    new = [marking(text) for text in document.texts]
    written = document.write(new).decode()
    assert "".join(written.replace("ʹ", "").split()) == "".join(content.split())
    assert written.count("ʹ") == sum(text.text.count("ʹ") for text in new)
    mirrored = document.write([mirroring(text) for text in document.texts]).decode()
    assert sorted("".join(mirrored.split())) == sorted("".join(content.split()))


def test_generated_files() -> None:
    for seed in range(DOCUMENTS):
        try:
            check(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
