"""JSON: the values that are strings are translated, except those of keys that begin with `@`."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial

from outrider.documents.marked import MarkedText, Span
from outrider.documents.text_file import Edit, Item, TextDocument, decode
from outrider.errors import InputError

_TOKEN = re.compile(
    r'[ \t\r\n]*(?:(?P<string>"[^"\\\x00-\x1f]*'
    r'(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*")'
    r"|(?P<mark>[\[\]{}:,])|(?P<other>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null))"
)
_LINKED = re.compile(r"\$t\([^()]*\)|@(?:\.\w+)?:\(?[\w.]+\)?")
"""References to other messages in i18next and vue-i18n."""


def read(content: bytes) -> TextDocument:
    """Locate the values of a JSON file."""
    file = decode(content)
    ascii_only = file.text.isascii() and "\\u" in file.text
    items = []
    for start, end in _values(file.text):
        value: str = json.loads(file.text[start:end])
        text = value.strip()
        if any(map(str.isalpha, text)):
            first = value.index(text)
            around = value[:first], value[first + len(text) :]
            spans = (Span(*found.span(), "", kept=True) for found in _LINKED.finditer(text))
            edits = partial(_edits, start, end, around, ascii_only)
            items.append(Item([MarkedText(text, tuple(spans))], edits))
    return TextDocument(file, items)


def _values(text: str) -> Iterator[tuple[int, int]]:
    """Yield the place of each value that is a string."""
    opened: list[str] = []
    skipped: int | None = None
    """How many braces and brackets are open around a value that is not translated."""
    expected = "value"
    at = 0
    while token := _TOKEN.match(text, at):
        mark, string = token["mark"], token["string"]
        if mark in ("{", "[") and expected in ("value", "first"):
            opened.append(mark)
            expected = "first key" if mark == "{" else "first"
        elif mark in ("}", "]") and opened and expected in _closing(mark, opened[-1]):
            opened.pop()
            expected = "next"
        elif mark == ":" and expected == "colon":
            expected = "value"
        elif mark == "," and expected == "next" and opened:
            expected = "key" if opened[-1] == "{" else "value"
        elif string and expected in ("key", "first key"):
            expected = "colon"
            if skipped is None and string.startswith('"@'):
                skipped = len(opened)
        elif (string or token["other"]) and expected in ("value", "first"):
            if string and skipped is None:
                yield token.span("string")
            expected = "next"
        else:
            break
        if expected == "next" and skipped is not None and len(opened) <= skipped:
            skipped = None
        at = token.end()
    end = re.compile(r"[ \t\r\n]*").match(text, at)
    if opened or expected != "next" or (end and end.end() != len(text)):
        line = text.count("\n", 0, at) + 1
        raise InputError(f"line {line} of the file is not JSON: {text[at : at + 40].strip()!r}")


def _closing(mark: str, opened: str) -> tuple[str, ...]:
    if (opened, mark) == ("{", "}"):
        return "next", "first key"
    return ("next", "first") if (opened, mark) == ("[", "]") else ()


def _edits(
    start: int,
    end: int,
    around: tuple[str, str],
    ascii_only: bool,
    translations: Sequence[MarkedText],
) -> Iterator[Edit]:
    text = f"{around[0]}{translations[0].text}{around[1]}"
    yield start, end, json.dumps(text, ensure_ascii=ascii_only)
