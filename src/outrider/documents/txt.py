"""Plain text: each line is a text; lines of a hard-wrapped paragraph are one."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

from outrider.documents.marked import MarkedText
from outrider.documents.pauses import columns, cut, joint
from outrider.documents.text_file import Edit, Item, TextDocument, decode

WRAPPED = range(50, 101)
"""Columns of the longest line of a hard-wrapped paragraph."""
_PARAGRAPH = re.compile(r"(?:(?:\A|(?<=[\r\n]))[^\S\r\n]*\S[^\r\n]*(?:\r\n|\n|\r|\Z))+")
_LINE = re.compile(r"[^\S\r\n]*(\S[^\r\n]*)")
_END = re.compile(r"[.!?:;…。！？]\W*\Z")
_ITEM = re.compile(r"(?:[-*+•–—>|#]|\d{1,3}[.)])\s")


def read(content: bytes) -> TextDocument:
    """Locate the lines and paragraphs of a text file."""
    file = decode(content)
    items: list[Item] = []
    for paragraph in _PARAGRAPH.finditer(file.text):
        lines = list(_LINE.finditer(file.text, *paragraph.span()))
        if _is_wrapped([line[0] for line in lines]):
            items += _items(file.text, lines)
        else:
            for line in lines:
                items += _items(file.text, [line])
    return TextDocument(file, items)


def _is_wrapped(lines: Sequence[str]) -> bool:
    """Whether lines are one paragraph: all but the last are about as long as the longest."""
    widths = [columns(line.rstrip()) for line in lines]
    if len(lines) < 2 or max(widths) not in WRAPPED:
        return False
    if any(_ITEM.match(line.strip()) for line in lines[1:]):
        return False
    long = sum(width >= 0.75 * max(widths) for width in widths[:-1])
    ended = sum(bool(_END.search(line)) for line in lines[:-1])
    return long == len(lines) - 1 and 2 * ended < len(lines)


def _items(text: str, lines: Sequence[re.Match[str]]) -> Iterator[Item]:
    whole = ""
    for line in lines:
        words = line[1].rstrip()
        whole += joint(whole, words) + words
    if any(map(str.isalpha, whole)):
        end = lines[-1].start(1) + len(lines[-1][1].rstrip())
        between = text[lines[0].end() : lines[1].start(1)] if len(lines) > 1 else ""
        width = max(columns(line[0].rstrip()) for line in lines)
        edits = partial(_edits, lines[0].start(1), end, between, width)
        yield Item([MarkedText(whole)], edits)


def _edits(
    start: int, end: int, between: str, width: int, translations: Sequence[MarkedText]
) -> Iterator[Edit]:
    """Write a line, or a paragraph in lines of the width that it had."""
    text = " ".join(translations[0].text.split("\n"))
    if between:
        count = -(-columns(text) // width)
        places = [0, *cut(text, [1.0] * count), len(text)] if count > 1 else [0, len(text)]
        lines = (text[first:last].strip() for first, last in pairwise(places))
        text = between.join(line for line in lines if line)
    yield start, end, text
