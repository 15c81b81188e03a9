"""JSON: values that are translated, and everything that stays."""

import json
import time
from random import Random
from typing import Any

import pytest

from outrider.documents.json import read
from outrider.documents.marked import MarkedText
from outrider.documents.translate import translate_marked
from outrider.errors import InputError
from tests.helpers.generated_texts import DOCUMENTS, marking, mirroring, sentence
from tests.helpers.pseudo import upper


def capitals(content: str) -> str:
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    return document.write(translate_marked(document.texts, upper)).decode()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"a": "b"}', '{"a": "B"}'),
        (
            '{ "a" :"b","c":1.50e3 , "d":null,"e":[true,"f" ] }\n',
            '{ "a" :"B","c":1.50e3 , "d":null,"e":[true,"F" ] }\n',
        ),
        ('"a"', '"A"'),
        ("[]", "[]"),
        ("{}", "{}"),
        ("12", "12"),
        ('{"a": " b\\n", "c": "1", "d": ""}', '{"a": " B\\n", "c": "1", "d": ""}'),
        (
            '{"@@locale": "en", "a": "b", "@a": {"description": "c", "d": ["e"]}, "f": "g"}',
            '{"@@locale": "en", "a": "B", "@a": {"description": "c", "d": ["e"]}, "f": "G"}',
        ),
        (
            '{"a": "{{count}} of {name} $t(a.b) @:c.d"}',
            '{"a": "{{count}} OF {name} $t(a.b) @:c.d"}',
        ),
        (
            '{"a": "{n, plural, one {# file} other {# files}}"}',
            '{"a": "{n, plural, one {# file} other {# files}}"}',
        ),
        ('{"a": "caf\\u00e9 \\"b\\" \\/"}', '{"a": "CAF\\u00c9 \\"B\\" /"}'),
        ('{"a": "café \\ud83d\\ude00 b"}', '{"a": "CAFÉ 😀 B"}'),
        ('\ufeff{"a": "b"}', '\ufeff{"a": "B"}'),
    ],
)
def test_values_are_translated(content: str, expected: str) -> None:
    assert capitals(content) == expected


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"a"}',
        '{"a": }',
        '{"a": "b",}',
        "[1 2]",
        "[,]",
        '{"a": "b"} x',
        "{]",
        '{"a": "b\n"}',
        '{1: "a"}',
        "nul",
        '["a"',
        "]",
        '{"a": "\\x"}',
        "[1,]",
        '"a" "b"',
    ],
)
def test_damaged_files_are_refused(content: str) -> None:
    with pytest.raises(ValueError):
        json.loads(content)
    with pytest.raises(InputError, match="line 1 of the file is not JSON"):
        read(content.encode())


@pytest.mark.parametrize(
    "content",
    [
        "[" * 200_000 + "]" * 200_000,
        '{"a":' * 100_000 + '"b"' + "}" * 100_000,
        '"' + "a " * 200_000 + '"',
        "[" + '"a",' * 50_000 + '"a"]',
        " " * 300_000 + "1",
    ],
)
def test_giant_and_deep_files_take_linear_time(content: str) -> None:
    start = time.process_time()
    document = read(content.encode())
    document.write([MarkedText(text.text + "!") for text in document.texts])
    assert time.process_time() - start < 6


def value(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(8 if depth < 4 else 5)
    if kind < 3:
        return sentence(random) + random.choice(["", "\n", ' "q" \\ ', " {{x}}"])
    if kind < 5:
        return random.choice([None, True, 1, -2.5, "", "12", []])
    if kind == 5:
        return [value(random, depth + 1) for _ in range(random.randint(0, 3))]
    return {
        f"{random.choice(['', '@'])}k {n}": value(random, depth + 1)
        for n in range(random.randint(0, 4))
    }


def leaves(found: Any, hidden: bool = False) -> list[tuple[bool, Any]]:
    """Return keys and values, and whether they stay."""
    if isinstance(found, dict):
        return [
            leaf
            for key, one in found.items()
            for leaf in [(True, key), *leaves(one, hidden or key.startswith("@"))]
        ]
    if isinstance(found, list):
        return [leaf for one in found for leaf in leaves(one, hidden)]
    return [(hidden or not isinstance(found, str), found)]


def check(seed: int) -> None:
    random = Random(seed)
    data = {f"k{number}": value(random, 1) for number in range(random.randint(1, 5))}
    content = json.dumps(
        data, ensure_ascii=random.random() < 0.5, indent=random.choice([None, 2, "\t"])
    )
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    before = leaves(data)
    for change in (marking, mirroring):
        new = [change(text) for text in document.texts]
        written = document.write(new).decode()
        after = leaves(json.loads(written))
        assert len(before) == len(after)
        changed = 0
        for (stays, old), (_, one) in zip(before, after, strict=True):
            if stays:
                assert one == old
            elif one != old:
                assert one.strip() == new[changed].text.strip() or one.strip() in [
                    t.text for t in new
                ]
                changed += 1
        assert [
            one.strip()
            for (stays, old), (_, one) in zip(before, after, strict=True)
            if not stays and any(map(str.isalpha, old))
        ] == [text.text.strip() for text in new]


def test_generated_files() -> None:
    for seed in range(DOCUMENTS):
        try:
            check(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
