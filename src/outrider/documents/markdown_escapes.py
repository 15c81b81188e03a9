"""Inline mark-up of Markdown: translations with their mark-up and escapes."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from markdown_it.token import Token

from outrider.documents.markdown_inline import EMPHASIS, LITERAL, Inline, tag_event
from outrider.documents.marked import MarkedText, Span
from outrider.documents.text_file import with_markup

_PUNCTUATION = r"""!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~"""
_START = re.compile(r"(?m)^(\d{0,9})([?\[#>+\-=|:~`{!<$.)])")
_SOME = re.compile(r"(?m)^(\d{0,9})([#+\-=|:{!.)])|()([\\`*_\[\]<>&~$])")
_ALL = re.compile(rf"()([{_PUNCTUATION}])")
_ADMONITION = re.compile(r":{3}|!!!|\?\?\?|\[![A-Za-z]+\]")
_BREAKS = re.compile(r"(?:[ \t]*(?: {2}|\\)\n){2,}")
_EDGES = re.compile(r"\A(?:\s|\\\n)+|(?:\s|\\\n)+\Z")


def write_inline(
    inline: Inline,
    translations: Sequence[MarkedText],
    parse: Callable[[str], Sequence[Token]],
) -> str:
    """Write a translation with as few escapes as keep its meaning for a parser.

    Emphasis that a parser does not read, such as `**（字）**字`, becomes a tag of HTML.
    """
    marked = _trimmed(translations[0])
    expected = Counter(
        event
        for span in marked.spans
        for event in (
            *inline.events.get((span.open, span.close), ()),
            tag_event(span.close) if span.close.startswith("</") else "",
        )
        if event
    )
    words = "".join(marked.text.split())
    pattern: re.Pattern[str] | None
    for pattern, tags in (
        (None, False),
        (_START, False),
        (_SOME, False),
        (_SOME, True),
        (_ALL, False),
        (_ALL, True),
    ):
        written = _written(inline, marked, pattern, tags, {})
        if _meaning(parse(written)) == (words, expected) and not _ADMONITION.match(written):
            break
    texts = [text.text for text in translations[1:]]
    return _written(inline, marked, pattern, tags, _inner(inline, texts))


def _written(
    inline: Inline,
    marked: MarkedText,
    pattern: re.Pattern[str] | None,
    tags: bool,
    inner: dict[str, str],
) -> str:
    spans = []
    for span in marked.spans:
        opening, closing = _markup(inline, span, tags, inner)
        spans.append(replace(span, open=opening, close=closing))
    written = with_markup(
        MarkedText(marked.text, tuple(spans)),
        partial(_escaped, pattern),
        lambda span, text: span.kept and bool(span.open or text in inline.literals),
    )
    written = _EDGES.sub("", written)
    return _BREAKS.sub(lambda match: "\\\n" * match[0].count("\n"), written)


def _escaped(pattern: re.Pattern[str] | None, text: str) -> str:
    if pattern is None:
        return text
    return pattern.sub(
        lambda match: "\\".join(group for group in match.groups() if group is not None), text
    )


def _markup(inline: Inline, span: Span, tags: bool, inner: dict[str, str]) -> tuple[str, str]:
    """Return the mark-up of a span with translated titles; with `tags`, emphasis as HTML."""
    first = inline.events.get((span.open, span.close), ("",))[0]
    opening = inner.get(span.open, span.open)
    closing = inner.get(span.close, span.close)
    if not tags or first not in EMPHASIS:
        return opening, closing
    name = EMPHASIS[first]
    if span.close:
        return f"<{name}>", f"</{name}>"
    size = 1 if first == "em" else 2
    return f"<{name}>{opening[size:-size]}</{name}>", ""


def _trimmed(marked: MarkedText) -> MarkedText:
    """Take white space out of spans, and emphasis without a word away."""
    text = re.sub(r"\s", " ", marked.text)
    spans = []
    for span in marked.spans:
        start, end = span.start, span.end
        if span.close and not span.kept:
            while start < end and text[start] == " ":
                start += 1
            while end > start and text[end - 1] == " ":
                end -= 1
            if start == end and span.open[0] in "*_~":
                continue
        spans.append(replace(span, start=start, end=end))
    return MarkedText(text, tuple(spans))


def _inner(inline: Inline, texts: Sequence[str]) -> dict[str, str]:
    """Return mark-up with translated descriptions and titles."""
    left: Iterator[str] = iter(texts)
    changed = {}
    for raw, parts in inline.inner.items():
        new = [part if isinstance(part, str) else _quotable(next(left), part) for part in parts]
        changed[raw] = "".join(new)
    return changed


def _quotable(text: str, part: tuple[str, str]) -> str:
    source, mark = part
    if text == source:
        return source
    text = re.sub(r"\s+", " ", text)
    if mark == "]":
        return re.sub(r"[\\`*_\[\]<&~$!]", r"\\\g<0>", text)
    return re.sub(rf"[\\&{re.escape(mark)}(]" if mark == ")" else rf"[\\&{mark}]", r"\\\g<0>", text)


def _meaning(tokens: Sequence[Token]) -> tuple[str, Counter[str]]:
    """Return the words of a paragraph without white space, and its mark-up."""
    inline = [token for token in tokens if token.type == "inline"]
    if len(inline) != 1 or len(tokens) not in (1, 3) or tokens[0].type == "heading_open":
        return "\n", Counter()
    words: list[str] = []
    events: Counter[str] = Counter()
    link = ""
    for token in inline[0].children or ():
        kind, _, direction = token.type.partition("_")
        if token.type in ("text", "text_special", "code_inline", LITERAL):
            words.append(token.content)
            if kind == "code":
                events["code"] += 1
            elif link:
                events[f"a {token.content}"] += 1
        elif kind in EMPHASIS and direction == "open":
            events[kind] += 1
        elif token.type == "link_open":
            link = token.markup
            events[f"a {token.attrGet('href')}"] += not link
        elif token.type == "link_close":
            link = ""
        elif kind == "hardbreak":
            events["br"] += 1
        elif kind == "image":
            events[f"img {token.attrGet('src')}"] += 1
        elif kind == "html":
            events[tag_event(token.content)] += 1
    events.pop("", None)
    return "".join("".join(words).split()), +events
