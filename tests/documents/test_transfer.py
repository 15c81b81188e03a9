"""Spans in translations: none is lost, doubled or crossed, and each is where its words are."""

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.documents.marked import MarkedText, Span
from outrider.documents.transfer import transfer
from outrider.documents.units import divide
from outrider.text.alignment import Alignment, Link
from tests.helpers.markup import marked_up, nesting, parse


def words(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\{\w+\}|\w+|[^\w\s]", text)]


def aligned(source: str, target: str, pairs: str) -> Alignment:
    """Links by the numbers of words: `0-1 1-0`."""
    links = [tuple(map(int, pair.split("-"))) for pair in pairs.split()]
    sources, targets = words(source), words(target)
    return tuple(Link(sources[one], targets[other]) for one, other in links)


@pytest.mark.parametrize(
    ("source", "translation", "pairs", "wanted"),
    [
        (
            "Open the <a>red <b>door</b></a> now.",
            "Abra a porta vermelha agora.",
            "0-0 1-1 2-3 3-2 4-4 5-5",
            "Abra a <a><b>porta</b> vermelha</a> agora.",
        ),
        ("<a>red <b>door</b></a>", "porta vermelha", "0-1 1-0", "<a><b>porta</b> vermelha</a>"),
        ("<b>It is late.</b>", "Já é tarde.", "0-1 2-2", "<b>Já é tarde.</b>"),
        ("<i/>red door<br/>", "porta vermelha", "0-1 1-0", "<i/>porta vermelha<br/>"),
        ("a <i/>red door", "uma porta vermelha", "0-0 1-2 2-1", "uma <i/>porta vermelha"),
        ("one<br/> two", "um dois", "0-0 1-1", "um<br/> dois"),
        ("<b>the</b> red door", "porta vermelha", "1-1 2-0", "<b></b>porta vermelha"),
        ("go <b>away</b>", "va", "0-0", "va<b></b>"),
        ("<b>d</b><i>oor</i>", "porta", "0-0", "<b></b><i>porta</i>"),
        (
            "press <b>Space</b> now",
            "carregue em espaço já",
            "0-0 1-1 1-2 2-3",
            "carregue em <b>espaço</b> já",
        ),
        ("<b>object(s)</b> to move", "objetos a mover", "0-0 3-1 5-2", "<b>objetos</b> a mover"),
        ("<b>on</b>e day", "um dia", "0-0 1-1", "<b>um</b> dia"),
        ("has <b>not gone</b> home", "ist nicht heim gegangen", "0-0 1-1 2-3 3-2", None),
        ("see <b>一二</b>三", "三一二见", "", None),
    ],
)
def test_spans_cover_the_words_linked_with_theirs(
    source: str, translation: str, pairs: str, wanted: str | None
) -> None:
    marked = parse(source)
    links = aligned(marked.text, translation, pairs)
    found = transfer(marked, translation, links)
    assert found.text == translation
    if wanted is not None:
        assert marked_up(found) == wanted
    assert nesting(found) == nesting(marked)


@pytest.mark.parametrize(
    ("source", "translation", "pairs", "wanted"),
    [
        ("Hi [{name}], hello", "Olá {name}, oi", "0-0 1-1 2-2 3-3", "Olá [{name}], oi"),
        ("Hi [{name}], hello", "Olá {nome}, oi", "0-0 1-1 2-2 3-3", "Olá [{name}], oi"),
        ("Hi [{name}], hello", "Olá, oi", "0-0 2-1 3-2", "Olá [{name}], oi"),
        ("Hi [{name}] hello", "{name} Olá oi {name}", "0-1 1-0 2-2", "[{name}] Olá oi"),
        ("[{a}] before [{b}]", "{b} antes {a}", "0-2 1-1 2-0", "[{b}] antes [{a}]"),
        ("[{a}] and [{a}]", "{a} e", "0-0 1-1", "[{a}] e [{a}]"),
        ("<b>[{a}] red</b> x", "vermelho x {a}", "0-2 1-0 2-1", "<b>vermelho x [{a}]</b>"),
        ("press [Open] to open", "Abra Abra", "1-0 3-1", "[Open] Abra"),
        ("Open [Open]", "Open Open", "0-0 1-1", "Open [Open]"),
        ("你好[{name}]！", "你好！", "", "你好[{name}]！"),
    ],
)
def test_kept_texts_stay_verbatim(source: str, translation: str, pairs: str, wanted: str) -> None:
    marked = parse(source)
    found = transfer(marked, translation, aligned(marked.text, translation, pairs))
    assert marked_up(found) == wanted


def test_mark_up_inside_a_kept_span_is_copied() -> None:
    marked = parse("see [ls <b>-l</b>] there")
    found = transfer(marked, "veja isto", aligned(marked.text, "veja isto", "0-0"))
    assert marked_up(found) == "veja [ls <b>-l</b>] isto"


def test_units_keep_letters_with_their_marks() -> None:
    units, tail = divide("हिन्दी é 👍🏽👩‍🚀 🇧🇷 d'água 你好 ", [])
    texts = [unit.text for unit in units]
    assert texts == ["हिन्दी", "é", "👍🏽", "👩‍🚀", "🇧🇷", "d", "'", "água", "你", "好"]
    assert tail == " "


WORD = st.sampled_from(
    ["one", "two", "red", "das", "é", "שלום", "你好", "👩‍🚀", ".", ",", "a", "हिन्दी", "(", "x1"]
)
SPACE = st.sampled_from([" ", " ", "", "  "])
TEXT = st.lists(st.tuples(WORD, SPACE), max_size=14).map(lambda items: "".join(map("".join, items)))


@st.composite
def texts(draw: st.DrawFn) -> MarkedText:
    """A text with random nested spans, points and kept parts."""
    spans: list[Span] = []
    text = ""

    def piece(depth: int) -> None:
        nonlocal text
        for _ in range(draw(st.integers(0, 4))):
            kind = draw(st.sampled_from(["text", "text", "span", "point", "kept"]))
            number = len(spans)
            if kind == "text":
                text += draw(WORD) + draw(SPACE)
            elif kind == "point":
                spans.append(Span(len(text), len(text), f"<p{number}/>"))
                text += draw(WORD)
            elif kind == "kept":
                kept = draw(st.sampled_from(["{a}", "{a}", "{b}", "%s"]))
                spans.append(Span(len(text), len(text) + len(kept), "", "", kept=True))
                text += kept + draw(SPACE)
            elif depth < 4:
                spans.append(Span(len(text), len(text), f"<s{number}>", f"</s{number}>"))
                piece(depth + 1)
                text += draw(WORD)
                span = spans[number]
                spans[number] = Span(span.start, len(text), span.open, span.close)

    piece(0)
    return MarkedText(text + draw(WORD), tuple(spans))


@st.composite
def cases(draw: st.DrawFn) -> tuple[MarkedText, str, Alignment]:
    marked = draw(texts())
    pieces = draw(
        st.lists(st.one_of(WORD, st.sampled_from(["{a}", "{b}", "%s", "%"])), max_size=14)
    )
    target = "".join(piece + draw(SPACE) for piece in pieces)
    sources, targets = words(marked.text), words(target)
    linked = [one for one in targets if draw(st.integers(0, 4))] if draw(st.booleans()) else []
    return marked, target, tuple(Link(draw(st.sampled_from(sources)), one) for one in linked)


def parents(marked: MarkedText) -> dict[str, str]:
    """Return the tag around each tag."""
    around, found = [""], {}
    for tag in re.findall(r"<[^>]*>", marked_up(MarkedText(marked.text, tuple(marked.spans)))):
        if tag.startswith("</"):
            around.pop()
        else:
            found[tag] = around[-1]
            if not tag.endswith("/>"):
                around.append(tag)
    return found


KEPT = re.compile(r"\{a\}|\{b\}|%s")


def check(marked: MarkedText, translation: str, found: MarkedText) -> None:
    """No span is lost, doubled or crossed, and no word; kept texts are verbatim."""

    def marks(text: MarkedText) -> list[str]:
        return sorted(mark for one in text.spans for mark in (one.open, one.close) if mark)

    assert marks(found) == marks(marked)
    assert parents(found) == parents(marked)
    around: list[Span] = []
    for span in found.spans:
        assert 0 <= span.start <= span.end <= len(found.text)
        while around and around[-1].end <= span.start:
            around.pop()
        assert not around or span.end <= around[-1].end, "crossed"
        if span.start < span.end:
            around.append(span)
    assert all(one.start <= other.start for one, other in pairwise(found.spans))
    kept = sorted(marked.text[one.start : one.end] for one in marked.spans if one.kept)
    assert sorted(found.text[one.start : one.end] for one in found.spans if one.kept) == kept
    if not kept:
        assert found.text == translation
    elif "%" not in translation.replace("%s", ""):
        assert sorted(one for one in KEPT.findall(found.text) if one in kept) == kept


@settings(max_examples=200)
@given(cases())
def test_no_span_is_lost_doubled_or_crossed(case: tuple[MarkedText, str, Alignment]) -> None:
    marked, translation, alignment = case
    check(marked, translation, transfer(marked, translation, alignment))


@settings(max_examples=200)
@given(texts(), st.booleans())
def test_a_text_aligned_with_itself_is_unchanged(marked: MarkedText, linked: bool) -> None:
    place = {span: (span.start, span.end) for span in marked.spans if span.kept}
    links = [Link(one, one) for one in words(marked.text)]
    found = transfer(marked, marked.text, tuple(links))
    check(marked, marked.text, found)
    assert found.text == marked.text
    assert len(place) == sum(span.kept for span in found.spans)


def test_the_check_finds_a_dropped_span() -> None:
    marked = parse("a <b>red</b> door")
    found = transfer(marked, "x y z", aligned(marked.text, "x y z", "0-0 1-1 2-2"))
    check(marked, "x y z", found)
    for broken in (found.spans[1:], found.spans * 2):
        with pytest.raises(AssertionError):
            check(marked, "x y z", MarkedText(found.text, broken))


def test_long_texts_take_linear_time() -> None:
    parts = [f"<b>w{number} <i>x{{n}}</i></b> [{{n}}]<br/> y" for number in range(4_000)]
    marked = parse(" ".join(parts))
    links = tuple(Link(place, place) for place in words(marked.text))
    for alignment in (links, ()):
        began = time.process_time()
        transfer(marked, marked.text, alignment)
        assert time.process_time() - began < 6
