"""Java properties: values are translated.

A file that is UTF-8 stays so; in others, and in those of ASCII, other characters are written as
`\\uXXXX`.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial

from outrider.documents.marked import MarkedText
from outrider.documents.text_file import Edit, Item, TextDocument, decode
from outrider.errors import InputError

_ENTRY = re.compile(
    r"[ \t\f]*(?:(?P<comment>[#!][^\r\n]*)"
    r"|(?P<key>(?:[^\\\s=:]|\\(?:\r\n|.|\Z))*)"
    r"(?:[ \t\f]|\\(?:\r\n|\r|\n))*(?:[=:](?:[ \t\f]|\\(?:\r\n|\r|\n))*)?"
    r"(?P<value>(?:[^\\\r\n]|\\(?:\r\n|.|\Z))*))(?:\r\n|\r|\n|\Z)",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(?:\r\n|\r|\n)[ \t\f]*|(.))", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_NAMES = {value: f"\\{name}" for name, value in _CONTROLS.items()} | {"\\": "\\\\"}
_MESSAGE = re.compile(r"\{\d+[,}]")
"""Fields of `MessageFormat`, in which apostrophes are doubled."""


def read(content: bytes) -> TextDocument:
    """Locate the values of a properties file."""
    try:
        file = decode(content)
    except InputError:
        file = decode(content, "iso-8859-1")
    raw = file.encoding != "iso-8859-1" and not file.text.isascii()
    items = []
    for entry in _ENTRY.finditer(file.text):
        words = _unescaped(entry["value"] or "")
        text = words.strip()
        if any(map(str.isalpha, text)):
            start = words.index(text)
            doubled = bool(_MESSAGE.search(text)) and "'{" not in text
            around = words[:start], words[start + len(text) :]
            shown = text.replace("''", "'") if doubled else text
            edits = partial(_edits, *entry.span("value"), around, raw, doubled)
            items.append(Item([MarkedText(shown)], edits))
    return TextDocument(file, items)


def _unescaped(value: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _CONTROLS.get(match[2], match[2]) if match[2] else ""

    text = _ESCAPED.sub(character, value)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _edits(
    start: int,
    end: int,
    around: tuple[str, str],
    raw: bool,
    doubled: bool,
    translations: Sequence[MarkedText],
) -> Iterator[Edit]:
    text = translations[0].text
    if doubled:
        text = text.replace("'", "''")
    text = f"{around[0]}{text}{around[1]}"
    written = "".join(_NAMES.get(character, character) for character in text)
    if written.startswith((" ", "=", ":")):
        written = f"\\{written}"
    if not raw:
        written = re.sub(r"[^\x20-\x7e]", _unicode, written)
    yield start, end, written


def _unicode(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
