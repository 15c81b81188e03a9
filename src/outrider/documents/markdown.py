"""Markdown: CommonMark with tables, strikethrough, formulas, footnotes and front matter.

The texts of paragraphs, headings and table cells are translated, with descriptions of images and
titles of links; a paragraph is written on one line. Everything else stays as it is.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from markdown_it.token import Token

from outrider.documents.markdown_escapes import write_inline
from outrider.documents.markdown_inline import Inline, parser, read_inline
from outrider.documents.marked import MarkedText
from outrider.documents.text_file import Edit, Item, TextDocument, decode

_FRONT = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?:.*?\r?\n)?\1[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_DIRECTIVE = re.compile(
    r"(?P<before>[ \t>]*)(?::{3,}[^\r\n]*|(?:!!!|\?\?\?\+?)[ \t][^\r\n]*|\[![\w-]+\][^\r\n]*)"
)
"""Lines that begin or end admonitions."""
_TASK = re.compile(r"\[[ xX]\][ \t]+(?=\S)")
_FOOTNOTE = re.compile(r"(?P<before>(?: {0,3}>)* {0,3})(?P<mark>\[\^[^\]\s]{1,50}\]:[ \t]+)(?=\S)")
_LAST = re.compile(r"[ \t]+\{[#.:][^{}\n]*\}\Z")
"""Attributes of a heading."""
_DEFINITION = re.compile(r"\n[ \t]*(?:\[[^\[\]\n]+\])?:[ \t]")
"""Lines that are definitions for other parsers."""


def read(content: bytes) -> TextDocument:
    """Locate the texts of a Markdown file."""
    file = decode(content)
    lines = re.split(r"(?<=\n)", file.text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    parse = parser()
    env: dict[str, object] = {}
    tokens = parse.parse(_without_directives(file.text, lines), env)
    items = []
    places: dict[int, int] = {}
    for number, token in enumerate(tokens):
        if token.type != "inline" or token.map is None or not token.content:
            continue
        before = tokens[number - 1]
        cell = before.type in ("td_open", "th_open")
        block = before.type == "paragraph_open" or before.markup in ("=", "-")
        place = _place(token, lines, starts, cell, places)
        if place is None or _DEFINITION.search(token.content):
            continue
        again = partial(parse.parse if block else parse.parseInline, env=env)
        item = _item(token, *place, cell, again)
        if item is not None:
            items.append(item)
    return TextDocument(file, items)


def _without_directives(text: str, lines: list[str]) -> str:
    """Empty the lines that are no text, so that the others keep their numbers."""
    front = _FRONT.match(text)
    end = text.count("\n", 0, front.end()) if front else 0
    kept = []
    for number, line in enumerate(lines):
        match = _DIRECTIVE.match(line)
        if number < end:
            line = "\n"
        elif match:
            line = f"{match['before']}\n"
        elif note := _FOOTNOTE.match(line):
            line = f"{note['before']}{_items(len(note['mark']))}{line[note.end() :]}"
        kept.append(line)
    return "".join(kept)


def _items(width: int) -> str:
    """Return the marks of nested lists, for which a parser ends the paragraph before."""
    return "-   " * ((width - 2) // 4) + "-    "[: (width - 2) % 4 + 2]


def _place(
    token: Token, lines: list[str], starts: list[int], cell: bool, places: dict[int, int]
) -> tuple[int, int, str] | None:
    """Return where a text begins and ends in the file, and what begins its second line."""
    first, last = token.map or (0, 0)
    content = token.content.split("\n")
    if len(content) != last - first and (len(content) > 1 or not cell):
        last = first + len(content)
    found = []
    for number, words in zip(range(first, last), content, strict=True):
        line = lines[number].rstrip("\r\n")
        words = words.strip(" \t")
        if cell:
            words = words.replace("|", "\\|")
            at = line.find(words, places.get(number, 0))
            places[number] = at + len(words)
        else:
            line = line.rstrip()
            at = len(line) - len(words) if line.endswith(words) else line.find(words)
        if at < 0:
            return None
        found.append((starts[number] + at, starts[number] + at + len(words)))
    prefix = ""
    if len(found) > 1:
        prefix = lines[first + 1][: found[1][0] - starts[first + 1]]
        prefix = ("\r\n" if lines[first].endswith("\r\n") else "\n") + prefix
    return found[0][0], found[-1][1], prefix


def _item(
    token: Token,
    start: int,
    end: int,
    prefix: str,
    cell: bool,
    parse: Callable[[str], Sequence[Token]],
) -> Item | None:
    inline = read_inline(token.content, token.children or [])
    if inline is None:
        return None
    marked = inline.marked
    skipped = 0
    if mark := _TASK.match(token.content):
        skipped = mark.end()
        start += skipped
    if mark := _LAST.search(token.content):
        end -= len(mark[0])
        marked = MarkedText(marked.text[: -len(mark[0])], marked.spans)
    spans = [span for span in marked.spans if span.end >= skipped]
    if skipped and not marked.text.startswith(token.content[:skipped]):
        return None
    if any(span.end > len(marked.text) for span in spans):
        return None
    shifted = (replace(span, start=span.start - skipped, end=span.end - skipped) for span in spans)
    inline.marked = MarkedText(marked.text[skipped:], tuple(shifted))
    texts = inline.texts()
    if not any(map(_has_words, texts)):
        return None
    return Item(texts, partial(_edits, inline, start, end, prefix, cell, parse))


def _has_words(marked: MarkedText) -> bool:
    """Whether there is a letter outside of the kept parts."""
    end = 0
    for span in marked.spans:
        if span.kept:
            if any(map(str.isalpha, marked.text[end : span.start])):
                return True
            end = span.end
    return any(map(str.isalpha, marked.text[end:]))


def _edits(
    inline: Inline,
    start: int,
    end: int,
    prefix: str,
    cell: bool,
    parse: Callable[[str], Sequence[Token]],
    translations: Sequence[MarkedText],
) -> Iterator[Edit]:
    written = write_inline(inline, translations, parse)
    if cell:
        written = written.replace("|", "\\|")
    yield start, end, written.replace("\n", prefix or "\n")
