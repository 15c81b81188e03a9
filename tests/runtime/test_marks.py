"""`marks=True`: placeholders, tags, addresses and emoji of plain texts stay as they are."""

from pathlib import Path

import pytest

import outrider
from outrider.cli.main import run
from outrider.documents.plain import mark_kept
from outrider.runtime import Translator
from outrider.runtime import translator as module

pytest.importorskip("outrider_native", reason="pip install ./native to test the core")

DEMO = Path(__file__).resolve().parents[2] / "demo" / "en-de"
MARKED = "Where is the <b>station</b>?"
TEXTS = ["Where is the station?", MARKED, "{name}", "", "https://example.org/x 🙂"]


@pytest.fixture(scope="module")
def model() -> Translator:
    loaded = outrider.load(DEMO)
    assert isinstance(loaded, Translator)
    return loaded


def test_marks_return_with_their_words(model: Translator) -> None:
    found = model.translate(MARKED, marks=True)
    assert "<b>Bahnhof</b>" in found
    assert model.translate("Where is {name}?", marks=True).count("{name}") == 1
    assert model.translate(TEXTS, marks=True)[2:] == TEXTS[2:]


def test_texts_without_marks_are_those_of_the_model(model: Translator) -> None:
    assert model.translate(TEXTS, marks=True)[0] == model.translate(TEXTS[0])
    assert model.translate(MARKED) != model.translate(MARKED, marks=True)


@pytest.mark.parametrize(
    "options", [{"mode": "tandem"}, {"beams": 2, "n_best": 2}, {"guard": True}]
)
def test_marks_are_kept_in_every_mode(model: Translator, options: dict[str, object]) -> None:
    for results in model.results(TEXTS, marks=True, **options):
        for result in results:
            assert result.text.count("{") == result.text.count("}") <= 1
    streamed = list(model.translate_iter(TEXTS, marks=True, window=2))
    assert streamed == model.translate(TEXTS, marks=True)


@pytest.mark.parametrize(
    "text",
    [
        "%s",
        "{0}",
        "a@b.org",
        "www.a.org",
        "/usr/bin",
        r"C:\x\y",
        "`x`",
        "__x__",
        "<br>",
        "🙂",
        "$X",
    ],
)
def test_every_kept_part_has_a_character_that_is_looked_for(text: str) -> None:
    assert mark_kept(text).spans == () or module._MARK.search(text)


def test_the_command_keeps_marks_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    run(["translate", "-m", str(DEMO), MARKED])
    assert "<b>Bahnhof</b>" in capsys.readouterr().out
    run(["translate", "-m", str(DEMO), MARKED, "--plain"])
    assert "<b>Bahnhof</b>" not in capsys.readouterr().out
