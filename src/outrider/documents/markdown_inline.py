"""Inline mark-up of Markdown: from the tokens of markdown-it to spans."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from markdown_it import MarkdownIt
from markdown_it.helpers import parseLinkDestination, parseLinkTitle
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from outrider.documents.marked import MarkedText, Span
from outrider.documents.pauses import joint

LITERAL = "literal"
_LITERAL = re.compile(
    r"\$\$[^$]+\$\$|\$(?![\s\d])[^$\n]*[^$\s\\]\$(?!\d)"
    r"|\{\{[^{}\n]*\}\}|\{%[^{}\n]*%\}"
)
"""Formulas and fields of templates."""
_FOOTNOTE = re.compile(r"(\[\^[^\]\s]{1,80}\])")
EMPHASIS = {"em": "em", "strong": "strong", "s": "del"}
_HTML = re.compile(r"<(/?)([a-zA-Z][\w-]*)[^<>]*(?<!/)>")
_SOFT, _HARD = re.compile(r" *\n[ \t]*"), re.compile(r"(?: {2,}|\\)\n[ \t]*")
_LABEL = re.compile(r"\[(?:[^\[\]\\]|\\.)*\]")
_SPACE = re.compile(r"\s*")


@dataclass
class Inline:
    """A text with mark-up, and the texts inside the mark-up: descriptions and titles."""

    marked: MarkedText
    inner: dict[str, list[str | tuple[str, str]]] = field(default_factory=dict)
    """Parts of a mark-up; pairs are texts to translate and their quotation marks."""
    events: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """What a parser reads for the mark-up of a span."""
    literals: set[str] = field(default_factory=set)

    def texts(self) -> list[MarkedText]:
        """Return the text, and the texts inside its mark-up."""
        pairs = (part for parts in self.inner.values() for part in parts)
        return [self.marked, *(MarkedText(part[0]) for part in pairs if isinstance(part, tuple))]


def parser() -> MarkdownIt:
    """Return a parser of CommonMark with tables and strikethrough."""
    found = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
    found.inline.ruler.before("escape", LITERAL, _literal)
    return found


def _literal(state: StateInline, silent: bool) -> bool:
    match = _LITERAL.match(state.src, state.pos, state.posMax)
    if not match:
        return False
    if not silent:
        state.push(LITERAL, "", 0).content = match[0]
    state.pos = match.end()
    return True


class _Reader:
    """Finds each token in the source, from the first to the last."""

    def __init__(self, source: str) -> None:
        self.source, self.at = source, 0
        self.text = ""
        self.parts: list[str] = []
        self.spans: list[Span] = []
        self.opened: list[tuple[int, str, int]] = []
        """Spans without an end: number, name, and where the mark-up begins in the source."""
        self.found = Inline(MarkedText(""))
        self.size = 0
        self.last = ""

    def write(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self.size += len(text)
            self.last = text[-1]

    def take(self, text: str) -> str:
        if not self.source.startswith(text, self.at):
            raise LookupError(text)
        self.at += len(text)
        return text

    def take_match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.source, self.at)
        if not match:
            raise LookupError(pattern.pattern)
        self.at = match.end()
        return match[0]

    def open(self, name: str, markup: str, event: str = "", start: int = 0) -> None:
        self.opened.append((len(self.spans), name, start))
        self.spans.append(Span(self.size, self.size, markup))
        self.found.events[markup, ""] = (event or name,)

    def close(self, name: str, markup: str) -> None:
        while self.opened and self.opened[-1][1] != name:
            self.opened.pop()  # a tag of HTML without an end
        number, _, _ = self.opened.pop()
        span = replace(self.spans[number], end=self.size, close=markup)
        self.found.events[span.open, markup] = self.found.events[span.open, ""]
        self.spans[number] = span
        if span.start == span.end:
            self.contract(number)

    def contract(self, number: int) -> None:
        """Make one point of a span without text and the points inside it: an image in a link."""
        first, *points = self.spans[number:]
        pairs = [(first.open, ""), *((point.open, point.close) for point in points)]
        marks = [first.open, *(point.open for point in points), first.close]
        inner = self.found.inner
        if any(mark in inner for mark in marks):
            inner["".join(marks)] = [part for mark in marks for part in inner.pop(mark, [mark])]
        events = [event for pair in pairs for event in self.found.events[pair]]
        if first.close.startswith("</"):
            events.append(tag_event(first.close))
        self.found.events["".join(marks), ""] = tuple(events)
        self.spans[number:] = [Span(self.size, self.size, "".join(marks))]

    def keep(self, text: str, markup: str = "", close: str = "", event: str = "") -> None:
        span = Span(self.size, self.size + len(text), markup, close, kept=True)
        self.found.events[markup, close] = (event,)
        self.spans.append(span)
        self.write(text)

    def literal(self, text: str) -> None:
        self.found.literals.add(text)
        self.keep(text)

    def read(self, tokens: Sequence[Token]) -> None:
        link = ""
        for token in tokens:
            kind, _, direction = token.type.partition("_")
            if token.type == "text" and link == "autolink":
                end = self.source.index(">", self.at)
                url = self.take(self.source[self.at : end])
                self.keep(url, "<", ">", f"a {token.content}")
            elif token.type == "text":
                for number, part in enumerate(_FOOTNOTE.split(self.take(token.content))):
                    (self.literal if number % 2 else self.write)(part)
            elif token.type == "text_special":
                self.take(token.markup)
                self.write(token.content)
            elif token.type == "code_inline":
                marks = self.take(token.markup)
                last = re.compile(rf"(?<!`){marks}(?!`)").search(self.source, self.at)
                if not last:
                    raise LookupError(marks)
                code = self.take(self.source[self.at : last.start()])
                self.take(marks)
                self.keep(code.replace("\n", " "), marks, marks, "code")
            elif token.type == LITERAL:
                self.literal(self.take(token.content))
            elif kind in ("softbreak", "hardbreak"):
                markup = self.take_match(_SOFT if kind == "softbreak" else _HARD)
                following = self.source[self.at : self.at + 1]
                after_point = any(span.start == self.size for span in self.spans[-1:])
                between = " " if after_point else joint(self.last, following)
                self.write(between if kind == "softbreak" else " ")
                if kind == "hardbreak":
                    self.point("\\\n" if markup[0] == "\\" else "  \n", "br")
            elif token.type == "html_inline":
                self.html(self.take(token.content))
            elif kind in EMPHASIS:
                markup = self.take(token.markup)
                (self.open if direction == "open" else self.close)(kind, markup)
            elif token.type == "link_open":
                link = token.markup
                start = self.at
                self.take("<" if link else "[")
                if not link:
                    self.open("a", "[", f"a {token.attrGet('href')}", start)
            elif token.type == "link_close" and link:
                self.take(">")
                link = ""
            elif token.type == "link_close":
                while self.opened[-1][1] != "a":
                    self.opened.pop()
                self.close("a", self.tail(self.opened[-1][2] + 1, self.at))
            elif token.type == "image":
                self.image(token)
            else:
                raise LookupError(token.type)

    def point(self, markup: str, event: str) -> None:
        self.found.events[markup, ""] = (event,)
        self.spans.append(Span(self.size, self.size, markup))

    def html(self, tag: str) -> None:
        match = _HTML.fullmatch(tag)
        name = f"<{match[2].lower()}>" if match else ""
        if match and match[1] and self.opened and self.opened[-1][1] == name:
            self.close(name, tag)
        elif match and not match[1]:
            self.open(name, tag, tag_event(tag))
        else:
            self.point(tag, tag_event(tag))

    def tail(self, label: int, at: int, before: str = "", alt: str = "") -> str:
        """Read the end of a link or image from its `]`; note its title and description."""
        source = self.source
        parts: list[str | tuple[str, str]] = [before, (alt, "]")] if alt.strip() else [before + alt]
        end = at + 1
        size = len(source)
        if source.startswith("(", end):
            place = _skip(source, end + 1)
            target = parseLinkDestination(source, place, size)
            place = _skip(source, target.pos if target.ok else place)
            title = parseLinkTitle(source, place, size)
            if title.ok and title.pos > place:
                parts.append(source[at : place + 1])
                parts.append((title.str, source[title.pos - 1]))
                at = title.pos - 1
                place = _skip(source, title.pos)
            if source.startswith(")", place):
                self.at = place + 1
                parts.append(source[at : self.at])
                whole = "".join(part if isinstance(part, str) else part[0] for part in parts)
                if any(isinstance(part, tuple) for part in parts):
                    self.found.inner[whole] = parts
                return whole
            del parts[1 + bool(alt.strip()) :]
            at = end - 1
        reference = _LABEL.match(source, end)
        self.at = reference.end() if reference else end
        name = reference[0] if reference and len(reference[0]) > 2 else f"[{source[label:at]}]"
        parts.append(f"]{name}")
        whole = "".join(part if isinstance(part, str) else part[0] for part in parts)
        if alt.strip():
            self.found.inner[whole] = parts
        return whole

    def image(self, token: Token) -> None:
        inner = _Reader(self.source)
        inner.at = self.at + len(self.take("!["))
        inner.read(token.children or [])
        words = "".join(inner.parts)
        raw = self.source[self.at : inner.at]
        start, self.at = self.at, inner.at
        markup = self.tail(start, self.at, "![", words if not inner.spans else "")
        if inner.spans:
            markup = f"![{raw}{markup[2:]}"
        self.point(markup, f"img {token.attrGet('src')}")


def _skip(source: str, at: int) -> int:
    match = _SPACE.match(source, at)
    return match.end() if match else at


def read_inline(source: str, tokens: Sequence[Token]) -> Inline | None:
    """Return the text of tokens; None if one of them is not found in the source."""
    reader = _Reader(source)
    try:
        reader.read(tokens)
    except (LookupError, ValueError):
        return None
    if reader.at != len(source):
        return None
    reader.found.marked = MarkedText("".join(reader.parts), tuple(reader.spans))
    return reader.found


def tag_event(tag: str) -> str:
    """Return the event of a tag of HTML; for emphasis, that of its mark-up."""
    for event, name in EMPHASIS.items():
        if tag in (f"<{name}>", f"</{name}>"):
            return "" if "/" in tag else event
    return f"html {tag}"
