"""Traces of hand-made rounds, and their pictures."""

from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.statistics import Round
from outrider.show.page import tandem_page, write_page
from outrider.show.tandem import WIDTH, _place, _wrap, draw_tandem
from outrider.show.tandem_trace import Span, Trace, trace

EOS = 0
WORDS = ["", " Wo", " ist", " der", " Bahn", "hof", "?", " Zug", " $5 & <b>", " das"]
WO, IST, DER, BAHN, HOF, MARK, ZUG, PRICE, DAS = range(1, 10)


def decode(ids) -> str:
    return "".join(WORDS[i] for i in ids).strip()


def traced(*rounds: Round, prompt=()) -> Trace:
    ids = [t for r in rounds for t in (*r.drafted[: r.accepted], r.token) if t]
    return trace("Where?", decode(ids), rounds, decode=decode, ends=[EOS], prompt=prompt)


def kinds(spans) -> list[tuple[str, str, int]]:
    return [(span.kind, span.text, span.place) for span in spans]


STATION = (
    Round((WO, DAS, DER), 1, IST),
    Round((DER, BAHN, HOF), 3, MARK),
    Round((EOS,), 1, None),
)


def test_every_token_has_its_kind() -> None:
    first, second, third = traced(*STATION).rounds
    assert kinds(first) == [
        ("accepted", "Wo", 1),
        ("refused", " das", 2),
        ("dropped", " der", 3),
        ("correction", " ist", 0),
    ]
    assert kinds(second) == [
        ("accepted", " der", 1),
        ("accepted", " Bahn", 2),
        ("accepted", "hof", 3),
        ("bonus", "?", 0),
    ]
    assert kinds(third) == [("accepted", "", 1)]
    assert third[0].ends
    assert third[0].label == "end"


def test_kept_tokens_spell_the_text() -> None:
    found = traced(*STATION)
    assert found.text == "Wo ist der Bahnhof?"
    assert "".join(s.text for spans in found.rounds for s in spans if s.kept) == found.text


def test_figures_are_those_of_the_rounds() -> None:
    found = traced(*STATION)
    assert (found.statistics.rounds, found.statistics.tokens) == (3, 7)
    assert found.summary == "7 tokens in 3 rounds: 2.33 tokens a round"
    assert found.statistics.acceptance_by_position[0] == 1.0
    assert found.kinds == ["accepted", "refused", "dropped", "correction", "bonus"]


def test_a_row_that_ends_inside_its_draft_drops_the_rest() -> None:
    """Draft tokens past the length limit are dropped without verification."""
    (spans,) = traced(Round((WO, IST, DER), 2, None)).rounds
    assert [span.kind for span in spans] == ["accepted", "accepted", "dropped"]


def test_a_step_without_a_draft_is_plain() -> None:
    (spans,) = traced(Round((), 0, WO)).rounds
    assert kinds(spans) == [("plain", "Wo", 0)]


def test_a_continuation_starts_with_a_space_after_its_prompt() -> None:
    (spans,) = traced(Round((IST,), 1, DER), prompt=[WO]).rounds
    assert [span.text for span in spans] == [" ist", " der"]


def test_second_sentence_starts_a_new_prefix() -> None:
    *_, last = traced(*STATION, Round((WO,), 1, ZUG)).rounds
    assert [span.text for span in last] == ["Wo", " Zug"]


def test_token_that_changes_earlier_text_is_decoded_alone() -> None:
    def swallowing(ids) -> str:
        return "x" if list(ids) == [WO, IST] else decode(ids)

    found = trace("", "x", [Round((WO, IST), 2, None)], decode=swallowing, ends=[EOS])
    assert [span.text for span in found.rounds[0]] == ["Wo", "ist"]


def test_confidence_belongs_to_its_draft_tokens() -> None:
    rounds = (Round((), 0, WO), Round((IST, DAS), 1, DER, (0.9, 0.2)))
    found = trace("", "", rounds, decode=decode, ends=[EOS])
    assert [span.confidence for span in found.rounds[0]] == [None]
    assert [span.confidence for span in found.rounds[1]] == [0.9, 0.2, None]


class Page(HTMLParser):
    """Collects tokens as (element, kind, text) and checks that every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.tokens: list[tuple[str, str, str]] = []
        self.tips: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        attributes = dict(attrs)
        self.links += [v for k, v in attrs if k in ("src", "href")]
        if "data-tip" in attributes:
            self.tips.append(attributes["data-tip"])
        if tag != "meta":
            self.open.append((tag, attributes.get("class", "")))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1][1].startswith("token "):
            tag, classes = self.open[-1]
            self.tokens.append((tag, classes.split()[1], data))


def test_the_page_holds_every_token_once() -> None:
    page = Page(tandem_page(traced(*STATION)))
    assert page.open == []
    assert page.tokens == [
        ("span", "accepted", "Wo"),
        ("del", "refused", "das"),
        ("del", "dropped", "der"),
        ("ins", "correction", "ist"),
        ("span", "accepted", "der"),
        ("span", "accepted", "Bahn"),
        ("span", "accepted", "hof"),
        ("span", "bonus", "?"),
        ("span", "accepted", "end"),
    ]
    assert page.tips[1] == f"refused: place 2 of the draft, token {DAS}"
    assert page.tips[3] == f"corrected: by the model itself, token {IST}"


def test_the_page_is_self_contained_and_has_both_schemes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_page(traced(*STATION), path)
    text = path.read_text(encoding="utf-8")
    assert Page(text).links == []
    assert "<script" not in text
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text


def test_text_is_escaped() -> None:
    page = tandem_page(traced(Round((PRICE,), 1, MARK)))
    assert "<b>" not in page.replace("<b>1</b>", "")
    assert "$5 &amp; &lt;b&gt;" in page


def test_confidence_is_shown_if_known() -> None:
    span = Span("Wo", "accepted", WO, 1, False, 0.84)
    page = Page(tandem_page(Trace("", "Wo", ((span,),), traced(*STATION).statistics)))
    assert page.tips == [f"drafted and accepted: place 1 of the draft, confidence 84%, token {WO}"]


def test_the_picture_is_drawn_and_grows_with_the_rounds(tmp_path: Path) -> None:
    import matplotlib.image

    short, long = tmp_path / "short.png", tmp_path / "new" / "long.png"
    draw_tandem(traced(*STATION, Round((PRICE,), 1, MARK)), short)
    draw_tandem(traced(*STATION * 4), long)
    one, other = matplotlib.image.imread(short), matplotlib.image.imread(long)
    assert one.shape[1] == other.shape[1] == pytest.approx(WIDTH / 72 * 150, abs=1)
    assert other.shape[0] > one.shape[0]


def test_the_picture_does_without_drafts(tmp_path: Path) -> None:
    draw_tandem(traced(Round((), 0, WO)), tmp_path / "plain.png")
    assert (tmp_path / "plain.png").stat().st_size > 1000


@given(st.lists(st.text(min_size=1, max_size=30), max_size=60))
def test_chips_stay_on_the_page_and_never_overlap(words: list[str]) -> None:
    spans = [Span(word, "accepted", 1, 1) for word in words]
    chips, below = _place(spans, 0.0, lambda text: 7.0 * len(text))
    assert len(chips) == len(words)
    assert all(chip.x + chip.width <= WIDTH and chip.y < below for chip in chips)
    for left, right in pairwise(chips):
        assert right.y > left.y or right.x >= left.x + left.width


@given(st.text(max_size=300))
def test_wrapped_lines_fit_and_lose_nothing(text: str) -> None:
    lines = _wrap(text, lambda line: 7.0 * len(line), 140.0)
    assert all(len(line) <= 20 for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
