"""Java properties: values, escapes and encodings."""

import time
from random import Random

import pytest

from outrider.documents.marked import MarkedText
from outrider.documents.properties import read
from outrider.documents.translate import translate_marked
from tests.helpers.generated_texts import DOCUMENTS, marking, mirroring, sentence
from tests.helpers.pseudo import upper


def capitals(content: bytes) -> bytes:
    document = read(content)
    assert document.write(document.texts) == content
    return document.write(translate_marked(document.texts, upper))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a=b c\n", "a=B C\n"),
        ("a b\n", "a B\n"),
        ("  a : b \r\n", "  a : B \r\n"),
        ("a.b\\ c\\==d\n", "a.b\\ c\\==D\n"),
        ("# a=b\n! a=b\n\n \na=\nb\n", "# a=b\n! a=b\n\n \na=\nb\n"),
        ("a=one \\\n    two\\\n three\nb=c", "a=ONE TWOTHREE\nb=C"),
        ("a=\\u0063af\\u00e9\\n\\tb\\\\", "a=CAF\\u00c9\\n\\tB\\\\"),
        ("a=\\ud83d\\ude00 b", "a=\\ud83d\\ude00 B"),
        ("a=café\n", "a=CAFÉ\n"),
        ("a=it's {0}\n", "a=IT'S {0}\n".replace("'", "''")),
        ("a=it''s {0}\n", "a=IT''S {0}\n"),
        ("a=it's\n", "a=IT'S\n"),
        ("a=b\\", "a=B\\\\"),
        ("a=1\nb=2.0", "a=1\nb=2.0"),
    ],
)
def test_values_are_translated(content: str, expected: str) -> None:
    assert capitals(content.encode()) == expected.encode()


def test_encodings() -> None:
    assert read(b"a=b").write([MarkedText("茶 😀")]) == b"a=\\u8336 \\ud83d\\ude00"
    assert read(b"a=caf\xe9").write([MarkedText("thé")]) == b"a=th\\u00e9"
    assert read("a=café".encode()).write([MarkedText("茶")]) == "a=茶".encode()
    assert read(b"a=b").write([MarkedText("c\nd # = :")]) == b"a=c\\nd # = :"


@pytest.mark.parametrize(
    "content",
    [
        "a" * 300_000,
        " " * 300_000,
        "a=" + "\\" * 300_001,
        "a=b\n" * 30_000,
        "\\\n" * 50_000,
        "a=" + " \\\n" * 50_000 + "b",
    ],
)
def test_giant_files_take_linear_time(content: str) -> None:
    start = time.process_time()
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    assert time.process_time() - start < 6


def check(seed: int) -> None:
    random = Random(seed)
    encoding = random.choice(["utf-8", "ascii"])
    lines, values = [], {}
    for number in range(random.randint(1, 10)):
        lines += random.choices(["# note = x", "", "! note"], k=random.randint(0, 1))
        text = sentence(random)
        values[f"k.{number}"] = text
        written = text.replace("\\", "\\\\")
        if random.random() < 0.3:
            written = written.replace(" ", " \\\n    ", 1)
        lines.append(f"k.{number}{random.choice(['=', ' = ', ': ', ' '])}{written}")
    joined = "\n".join(lines).replace("\n", random.choice(["\n", "\r\n"]))
    if encoding == "ascii":
        units = joined.encode("utf-16-be")
        joined = "".join(
            chr(unit) if unit < 127 else f"\\u{unit:04x}"
            for unit in (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
        )
    content = joined.encode()
    document = read(content)
    assert document.write(document.texts) == content
    assert [text.text for text in document.texts] == list(values.values())
    for change in (marking, mirroring):
        new = [change(text) for text in document.texts]
        written_file = document.write(new)
        again = read(written_file)
        assert [text.text for text in again.texts] == [text.text.strip() for text in new]
        assert written_file.count(b"note") == content.count(b"note")
        if encoding == "ascii":
            assert written_file.isascii()


def test_generated_files() -> None:
    for seed in range(DOCUMENTS):
        try:
            check(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
