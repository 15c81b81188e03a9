"""Terms of a glossary: put where the source has them, in every mode, and reported if not."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.decoding import DecodeConfig
from outrider.files.hub import demo_folder
from outrider.runtime import Translator, load
from outrider.text.glossary import Entry, Glossary, count

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def portuguese() -> Translator:
    """Firefox's English-Portuguese model, of the extra `demo`."""
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    folder = demo_folder("en", "pt")
    if folder is None:
        pytest.skip("pip install 'outrider[demo]' to test it")
    loaded = load(folder)
    assert isinstance(loaded, Translator)
    return loaded


TEXTS = [
    "The dog sees the committee.",
    "The committee chose the train station.",
    "Dogs are not allowed in the committee room.",
]
TERMS = Glossary(
    [
        Entry("committee", "comissão"),
        Entry("dog", "cachorro", True),
        Entry("train station", "gare"),
    ]
)


def test_terms_are_put_with_their_articles(portuguese: Translator) -> None:
    assert portuguese.translate(TEXTS, glossary=TERMS) == [
        "O cachorro vê a comissão.",
        "A comissão escolheu a gare.",
        "Cachorros não são permitidos na sala da comissão.",
    ]


def test_texts_without_terms_are_decoded_once(portuguese: Translator, monkeypatch) -> None:
    text = "Where is the station?"
    (work,) = portuguese.works(text, DecodeConfig(), glossary=TERMS)
    (plain,) = portuguese.works(text, DecodeConfig())
    assert [one.config for one in work.requests] == [one.config for one in plain.requests]
    (result,) = portuguese.results(text, glossary=TERMS)[0]
    assert result == portuguese.results(text)[0][0]
    assert result.alignment is None


def test_terms_are_put_beside_parts_that_are_kept(portuguese: Translator) -> None:
    text = "The dog `x = 1` sees the committee at https://example.org/a."
    (result,) = portuguese.results(text, glossary=TERMS, marks=True, guard=True)[0]
    assert result.missing_terms == ()
    for part in ("`x = 1`", "https://example.org/a", "comissão"):
        assert part in result.text


def test_alignments_fit_the_text(portuguese: Translator) -> None:
    (result,) = portuguese.results(TEXTS[0], glossary=TERMS, alignment=True)[0]
    assert result.alignment
    links = [
        (TEXTS[0][slice(*link.source)], result.text[slice(*link.target)])
        for link in result.alignment
    ]
    assert ("dog", "cachorro") in links
    assert any(source == "committee" and target in "comissão" for source, target in links)


@pytest.mark.parametrize(
    "options",
    [{"mode": "tandem", "draft": "source"}, {"beams": 3}, {"guard": True}, {"n_best": 2}],
)
def test_every_mode_obeys(portuguese: Translator, options: dict[str, Any]) -> None:
    greedy = portuguese.translate(TEXTS, glossary=TERMS)
    for results, text in zip(
        portuguese.results(TEXTS, glossary=TERMS, **options), greedy, strict=True
    ):
        for result in results:
            assert result.missing_terms == ()
        if "beams" not in options and "n_best" not in options:
            assert results[0].text == text


WORDS = (
    *("house", "river", "city", "people", "water", "school", "war", "music"),
    *("money", "president", "island", "car"),
)
TARGETS = (
    *("zebra", "abacate", "torre", "lâmpada", "São_Paulo", "cavalo", "guarda-chuva", "OTAN"),
    "peixe_azul",
)
FRAMES: list[Callable[[str, str], str]] = [
    lambda a, b: f"The {a} is near the {b}.",
    lambda a, b: f"I saw a {a} in the {b} yesterday, and it was very old.",
    lambda a, b: f"{a.capitalize()} and {b}!",
    lambda a, b: f"They said that every {b} needs a new {a}. We need no {a}.",
]


def test_generated_term_sets_are_obeyed(portuguese: Translator) -> None:
    chance = random.Random(1)
    texts, glossaries = [], []
    for number in range(60):
        a, b = chance.sample(WORDS, 2)
        first, second = (one.replace("_", " ") for one in chance.sample(TARGETS, 2))
        texts.append(FRAMES[number % len(FRAMES)](a, b))
        glossaries.append(Glossary([Entry(a, first), Entry(b, second, chance.random() < 0.3)]))
    for text, glossary in zip(texts, glossaries, strict=True):
        (result,) = portuguese.results(text, glossary=glossary)[0]
        assert result.missing_terms == ()
        for match in glossary.find(text):
            assert count(match.entry, result.text) >= 1, (text, result.text)


def test_what_cannot_be_put_is_reported(portuguese: Translator, echo, characters) -> None:
    backward = Translator(echo(), characters, longest=99, right_to_left=True)
    glossary = Glossary([Entry("ab", "xyz")])
    (result,) = backward.results("ab", glossary=glossary)[0]
    assert result.missing_terms == (("ab", "xyz"),)


def test_a_model_without_alignments_puts_terms_by_proportion(echo, characters) -> None:
    class Ranged(type(characters)):
        def source_ranges(self, text):
            return [(place, place + 1) for place in range(len(text))]

    translator = Translator(echo(), Ranged(), longest=99)
    (result,) = translator.results("aa bb cc", glossary=Glossary([Entry("bb", "xyz")]))[0]
    assert (result.text, result.missing_terms) == ("aa xyz c", ())


def test_the_command_reads_a_glossary(command, portuguese, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("committee\tcomissão\ndog\tcachorro\tinflect\n", encoding="utf-8")
    line = ("translate", "--from", "en", "--to", "pt", "--glossary", terms)
    assert command(*line, TEXTS[0]) == (0, "O cachorro vê a comissão.\n", "")
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text(TEXTS[0] + "\n")
    assert command(*line, "--in", source, "--out", out)[0] == 0
    assert out.read_text() == "O cachorro vê a comissão.\n"
    code, _, err = command(*line, "--shards", tmp_path, "--out", out)
    assert (code, err.count("--shards: cannot be combined with --glossary")) == (2, 1)
