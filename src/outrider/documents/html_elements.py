"""Elements of HTML and XML: those that divide texts, and those that are not translated."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from outrider.documents.entities import unescape
from outrider.documents.html_scanner import Kind, Token

INLINE_KEPT = ("code", "kbd", "samp", "math")
"""Elements that are not translated and stand in a sentence."""
BLOCK_KEPT = ("pre", "textarea")
HIDDEN = ("script", "style", "template", "svg")
"""Elements without a part in the sentence around them."""
BLOCKS = frozenset(
    (
        *("address", "article", "aside", "audio", "blockquote", "body", "button", "caption"),
        *("center", "col", "colgroup", "dd", "details", "dialog", "dir", "div", "dl", "dt"),
        *("fieldset", "figcaption", "figure", "footer", "form", "frame", "frameset", "h1", "h2"),
        *(
            "h3",
            "h4",
            "h5",
            "h6",
            "head",
            "header",
            "hgroup",
            "hr",
            "html",
            "iframe",
            "legend",
            "li",
        ),
        *(
            "link",
            "main",
            "menu",
            "meta",
            "nav",
            "noframes",
            "noscript",
            "object",
            "ol",
            "optgroup",
        ),
        *(
            "option",
            "p",
            "param",
            "pre",
            "search",
            "section",
            "select",
            "summary",
            "table",
            "tbody",
        ),
        *("td", "textarea", "tfoot", "th", "thead", "title", "tr", "ul", "video"),
    )
)
_NOT_TRANSLATED = re.compile(
    r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(?:"(?:[^"]*\s)?|'(?:[^']*\s)?)?notranslate\b""",
    re.IGNORECASE,
)
_BLANK = re.compile(r"[ \t\n\r\f]+")


@dataclass(frozen=True)
class Rules:
    """Which elements divide texts, beside those of HTML."""

    xml: bool = False
    """Whether names are those of XML, which have no meaning."""
    blocks: Collection[str] = ()
    inline: Collection[str] = ()
    kept: Collection[str] = ()
    """Elements that are not translated."""
    by_structure: bool = False
    """Whether elements divide texts, except those beside text in the same element."""


@dataclass(frozen=True)
class Element:
    """An element that is not translated."""

    raw: str
    open: str
    close: str
    text: str


def divide(tokens: Sequence[Token], rules: Rules) -> Iterator[tuple[Token | Element, bool]]:
    """Yield tokens and elements that are kept, and whether they divide texts."""
    blocks = _blocks(tokens, rules)
    at, broken = 0, False
    while at < len(tokens):
        token, end = tokens[at], at + 1
        is_break = token.name == "br" and not rules.xml
        if _is_kept(token, rules):
            end = _end_of(tokens, at)
            yield (_element(tokens[at:end], rules), blocks[at])
        else:
            yield (token, blocks[at] or (is_break and broken))
        if not (token.kind is Kind.text and not token.raw.strip()):
            broken = is_break
        at = end


def _element(tokens: Sequence[Token], rules: Rules) -> Element:
    """Return an element that is not translated."""
    first, last = tokens[0], tokens[-1]
    closed = len(tokens) > 1 and last.kind is Kind.closes
    hidden = first.name in HIDDEN and not rules.xml
    text = "" if hidden else _visible(tokens[1:-1] if closed else tokens[1:])
    raw = "".join(token.raw for token in tokens)
    return Element(raw, first.raw, last.raw if closed else "", text)


def _blocks(tokens: Sequence[Token], rules: Rules) -> list[bool]:
    """Whether each token divides texts."""
    known = () if rules.xml else BLOCKS
    by_structure = _blocks_by_structure(tokens) if rules.by_structure else None
    blocks = []
    for number, (kind, _, name) in enumerate(tokens):
        found = name in known if by_structure is None else by_structure[number]
        named = name in rules.blocks or (found and name not in rules.inline)
        blocks.append(named and kind in (Kind.opens, Kind.closes, Kind.empty))
    return blocks


def _blocks_by_structure(tokens: Sequence[Token]) -> list[bool]:
    """Whether each tag divides texts: not if its parent has text beside it."""
    around, parents = [0], []
    has_text = {0: False}
    for number, token in enumerate(tokens, 1):
        if token.kind is Kind.closes:
            parents.append(around[-2] if len(around) > 1 else 0)
            around = around[:1] if len(around) < 2 else around
            if len(around) > 1:
                around.pop()
            continue
        parents.append(around[-1])
        if token.kind is Kind.text and token.raw.strip():
            has_text[around[-1]] = True
        elif token.kind is Kind.opens:
            around.append(number)
            has_text[number] = False
    return [not has_text[parent] for parent in parents]


def _is_kept(token: Token, rules: Rules) -> bool:
    """Whether a tag opens an element that is not translated."""
    if token.kind is not Kind.opens:
        return False
    name = token.name
    known = not rules.xml and (name in INLINE_KEPT or name in BLOCK_KEPT or name in HIDDEN)
    return known or name in rules.kept or _NOT_TRANSLATED.search(token.raw) is not None


def _end_of(tokens: Sequence[Token], at: int) -> int:
    """Return the end of an element; elements of its name may be inside."""
    depth = 0
    for number in range(at, len(tokens)):
        if tokens[number].name == tokens[at].name:
            depth += {Kind.opens: 1, Kind.closes: -1}.get(tokens[number].kind, 0)
            if depth == 0:
                return number + 1
    return len(tokens)


def _visible(tokens: Sequence[Token]) -> str:
    raw = "".join(token.raw for token in tokens if token.kind is Kind.text)
    return collapse(raw).strip()


def collapse(raw: str) -> str:
    """Return the text that characters, references and white space stand for."""
    return _BLANK.sub(" ", unescape(raw))
