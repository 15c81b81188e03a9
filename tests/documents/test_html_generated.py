"""Generated pages with nested and broken mark-up, several scripts and emoji.

`OUTRIDER_PAGES` is their number; the default is a tenth of what a release is tested with.
"""

import html
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from outrider.documents.html import Page, read
from outrider.documents.marked import MarkedText
from outrider.documents.translate import Prepared, translate_marked
from tests.helpers.pseudo import Pseudo, careless, turned, upper

PAGES = int(os.environ.get("OUTRIDER_PAGES", "1000"))
TRANSLATORS: Sequence[Callable[[Sequence[str]], list[Pseudo]]] = (upper, turned, careless)
SCRIPTS = ("wort", "palavra", "слово", "שלום", "سلام", "你好", "हिन्दी", "한국어", "คำ", "ñandú")
INLINE = ("a", "b", "i", "em", "span", "u", "x-y", "b0", "sub", "q")
BLOCKS = ("p", "div", "li", "td", "h2", "section")
VOIDS = ("<br n={}>", "<img n={} src='a>b'>", "<x n={}/>", "<!-- {} <b> -->", "<wbr n={}>")
PARTS = re.compile(
    r"<!--.*?-->|<script.*?</script>|<code.*?</code>|<[^>']*(?:'[^']*'[^>']*)*>", re.S
)
BLOCK = re.compile(rf"<(/?)(?:{'|'.join(BLOCKS)})\b[^>]*>")


@dataclass
class Maker:
    """Writes a random page; every word and tag has a number."""

    dice: random.Random
    broken: bool
    parts: list[str] = field(default_factory=list)
    count: int = 0

    def number(self) -> int:
        self.count += 1
        return self.count

    def words(self) -> None:
        dice = self.dice
        for _ in range(dice.randint(1, 4)):
            word = f"{dice.choice(SCRIPTS)}{'abcdefghij'[self.number() % 10]}{self.count}"
            self.parts.append(word + dice.choice([" ", " ", " ", "\n ", ". ", ", ", " &amp; "]))
        if not dice.randint(0, 9):
            self.parts.append(dice.choice(["😀 ", "👩‍🚀 ", "{name} ", "%s ", "https://a.org/x "]))

    def inline(self, depth: int) -> None:
        dice = self.dice
        for _ in range(dice.randint(1, 4)):
            kind = dice.choice(["words", "words", "words", "tag", "tag", "void", "code", "bad"])
            if kind == "tag" and depth < 5:
                name, number = dice.choice(INLINE), self.number()
                self.parts.append(f"<{name} n={number}>")
                self.inline(depth + 1)
                self.parts.append(f"</{name} n={number}>")
            elif kind == "void":
                self.parts.append(dice.choice(VOIDS).format(self.number()))
            elif kind == "code":
                self.parts.append(f"<code n={self.number()}>a  &lt; <b>{self.count}</b></code> ")
            elif kind == "bad" and self.broken:
                name = dice.choice(INLINE)
                self.parts.append(f"<{dice.choice(['', '/'])}{name} n={self.number()}>")
            else:
                self.words()

    def page(self) -> str:
        for _ in range(self.dice.randint(1, 5)):
            block, number = self.dice.choice(BLOCKS), self.number()
            self.parts.append(f"<{block} n={number}>\n")
            self.inline(0)
            if not self.dice.randint(0, 5):
                self.parts.append(f"<script n={self.number()}>if (a<b) '{self.count}'</script>")
            self.parts.append(f"</{block} n={number}>")
        return "".join(self.parts)


def pages() -> Iterator[tuple[str, bool]]:
    for seed in range(PAGES):
        broken = seed % 2 == 1
        yield Maker(random.Random(seed), broken).page(), broken


def tags(page: str) -> Counter[str]:
    return Counter(PARTS.findall(page))


def words(page: str) -> list[Counter[str]]:
    """Count the words between each two block tags, without case."""
    pieces = BLOCK.sub("\0", PARTS.sub(lambda part: part[0] if BLOCK.match(part[0]) else "", page))
    return [Counter(re.findall(r"\w+", html.unescape(one).lower())) for one in pieces.split("\0")]


def parents(page: str) -> dict[str, str] | None:
    """Return the element around each tag; None if elements cross."""
    around, found = [""], {}
    for tag in PARTS.findall(page):
        if tag.startswith("</"):
            if around.pop() != tag[2:-1]:
                return None
            continue
        found[tag] = around[-1]
        name = tag[1:-1].split(" ")[0]
        if name in INLINE or name in BLOCKS:
            around.append(tag[1:-1])
    return found


def check(before: str, after: str, *, broken: bool, exact: bool) -> None:
    """Compare a page with its translation; `exact` if the translator loses no words."""
    assert tags(after) == tags(before)
    if exact:
        assert words(after) == words(before)
    if not broken:
        assert parents(after) == parents(before)


def test_generated_pages() -> None:
    for page, broken in pages():
        document = read(page.encode())
        assert document.write(document.texts) == page.encode()
        for translate in TRANSLATORS:
            after = document.write(translate_marked(document.texts, translate)).decode()
            check(page, after, broken=broken, exact=translate is not careless)


@pytest.mark.parametrize("part", ["open", "close"])
def test_the_check_finds_lost_and_doubled_tags(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "<p n=1>one <b n=2>two</b n=2> three</p n=1>"
    text = Page(page)
    (done,) = translate_marked(text.texts, turned)
    check(page, text.write_text([done]), broken=False, exact=True)
    for spans in ((), done.spans * 2):
        with pytest.raises(AssertionError):
            check(page, text.write_text([MarkedText(done.text, spans)]), broken=True, exact=True)
    finish = Prepared.finish

    def without(self: Prepared, translated: Pseudo) -> MarkedText:
        found = finish(self, translated)
        return MarkedText(found.text, found.spans[1:])

    monkeypatch.setattr(Prepared, "finish", without)
    with pytest.raises(AssertionError):
        test_generated_pages()
