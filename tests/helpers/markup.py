"""Marked texts as strings: `<b>…</b>` is a span, `<br/>` a point and `[…]` a kept span."""

import re

from outrider.documents.marked import MarkedText, Span

_TOKEN = re.compile(r"<(\w+)>|</(\w+)>|(<\w+/>)|([\[\]])")


def parse(text: str) -> MarkedText:
    """Read a marked text; brackets are left out."""
    spans: list[Span] = []
    open_: list[int] = []
    plain, end = "", 0

    def close(shown: str) -> None:
        number = open_.pop()
        span = spans[number]
        spans[number] = Span(span.start, len(plain), span.open, shown, span.kept)

    for token in _TOKEN.finditer(text):
        plain += text[end : token.start()]
        end = token.end()
        if token[3]:
            spans.append(Span(len(plain), len(plain), token[3]))
        elif token[2] or token[4] == "]":
            close(token[0] if token[2] else "")
        else:
            open_.append(len(spans))
            spans.append(Span(len(plain), 0, token[0] if token[1] else "", "", token[4] == "["))
    return MarkedText(plain + text[end:], tuple(spans))


def marked_up(marked: MarkedText) -> str:
    """Write a marked text; brackets are around kept spans."""
    parts: list[str] = []
    around: list[Span] = []
    end = 0

    def write(place: int, mark: str) -> None:
        nonlocal end
        parts.append(marked.text[end:place] + mark)
        end = place

    for span in marked.spans:
        while around and around[-1].end <= span.start:
            write(around[-1].end, around.pop().close)
        shown = ("[", "]") if span.kept and not span.open else (span.open, span.close)
        write(span.start, shown[0])
        if span.start == span.end:
            write(span.start, shown[1])
        else:
            around.append(Span(span.start, span.end, *shown))
    while around:
        write(around[-1].end, around.pop().close)
    write(len(marked.text), "")
    return "".join(parts)


def nesting(marked: MarkedText) -> set[tuple[str, str]]:
    """Return pairs of a span and the one around it, by their opening mark-up."""
    found = set()
    around: list[Span] = []
    for span in marked.spans:
        while around and around[-1].end <= span.start:
            around.pop()
        found.add((span.open, around[-1].open if around else ""))
        if span.start < span.end:
            around.append(span)
    return found
