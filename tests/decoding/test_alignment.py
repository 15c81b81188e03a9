"""Alignments of finished texts: equal in all batches and modes, and those of the words."""

from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.decoding import alignment as aligning
from outrider.runtime import Translator

pytest.importorskip("outrider_native", reason="pip install ./native to test the core")

DEMO = Path(__file__).resolve().parents[2] / "demo"
TEXTS = [
    "Where is the station?",
    "The red car is in front of the old house.",
    "  Where  is\tthe station?  \n\nWhere is the red car? ",
    "",
]


@pytest.fixture(scope="module")
def model() -> Translator:
    loaded = outrider.load(DEMO / "en-de")
    assert isinstance(loaded, Translator)
    return loaded


def pairs(model: Translator, text: str, **options: Any) -> dict[str, str]:
    ((result,),) = model.results([text], alignment=True, **options)
    assert result.alignment is not None
    return {result.text[slice(*t)]: text[slice(*s)] for s, t in result.alignment}


def test_words_are_aligned_with_their_translations(model: Translator) -> None:
    found = pairs(model, TEXTS[0])
    assert found["Wo"] == "Where"
    assert found["Bahnhof"] == "station"


def test_places_are_those_of_the_text_as_it_was_given(model: Translator) -> None:
    """White space is collapsed before tokens are made, and sentences are translated alone."""
    found = pairs(model, TEXTS[2])
    assert found["Bahnhof"] == "station"
    assert found["rote"] == "red"


def test_links_are_inside_both_texts_and_in_order(model: Translator) -> None:
    for text, (result,) in zip(TEXTS, model.results(TEXTS, alignment=True), strict=True):
        targets = [link.target for link in result.alignment or ()]
        assert targets == sorted(targets)
        for source, target in result.alignment or ():
            assert text[slice(*source)].strip() == text[slice(*source)] != ""
            assert result.text[slice(*target)].strip() == result.text[slice(*target)] != ""


def test_batches_and_drafts_do_not_change_alignments(
    model: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = [result.alignment for (result,) in model.results(TEXTS, alignment=True)]
    alone = [model.results([text], alignment=True)[0][0].alignment for text in TEXTS]
    drafted = model.results(TEXTS, alignment=True, mode="tandem")
    assert together == alone == [result.alignment for (result,) in drafted]
    monkeypatch.setattr(aligning, "BATCH_WEIGHTS", 1)
    assert together == [result.alignment for (result,) in model.results(TEXTS, alignment=True)]


def test_alternatives_have_their_own_alignments(model: Translator) -> None:
    (results,) = model.results([TEXTS[1]], alignment=True, beams=3, n_best=3)
    for result in results:
        assert result.alignment
        assert result.alignment[-1].target[1] <= len(result.text)


def test_the_heads_that_are_found_align_the_words(model: Translator) -> None:
    found = aligning.find_heads(model.backend)
    assert found == aligning.find_heads(model.backend)
    other = aligning.AlignmentHeads(((0, 0),), later=False)
    model.backend.alignment_heads = other  # type: ignore[attr-defined]
    try:
        assert pairs(model, TEXTS[0]).get("Bahnhof") != "station"
    finally:
        model.backend.alignment_heads = found  # type: ignore[attr-defined]
    assert pairs(model, TEXTS[0])["Bahnhof"] == "station"


def test_nothing_is_aligned_unless_requested(
    model: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(type(model.backend), "cross_attention", refuse)
    assert model.results([TEXTS[0]])[0][0].alignment is None
    with pytest.raises(AssertionError):
        model.results([TEXTS[0]], alignment=True)


def test_rows_that_are_too_long_are_not_aligned(
    model: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aligning, "MOST_WEIGHTS", 1)
    ((result,),) = model.results([TEXTS[0]], alignment=True)
    assert (result.text, result.alignment) == (model.translate(TEXTS[0]), None)


def test_pytorch_aligns_as_the_core(model: Translator) -> None:
    other = outrider.load(DEMO / "en-de", backend="torch")
    assert isinstance(other, Translator)
    assert pairs(other, TEXTS[1]) == pairs(model, TEXTS[1])
