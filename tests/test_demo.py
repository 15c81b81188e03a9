"""The English-German demo model: its size, origin and quality in all three modes."""

from pathlib import Path

import pytest

from outrider.cli.main import run
from outrider.runtime import Translator, load

DEMO = Path(__file__).parents[1] / "demo" / "en-de"
DOCS = DEMO.parents[1] / "docs"
TEXTS = (
    "Where is the station?",
    "I have never seen such a beautiful garden.",
    "If it rains tomorrow, we will stay at home and read.",
    "Tom's sister lives in Boston.",
)


@pytest.fixture(scope="module")
def demo() -> Translator:
    loaded = load(DEMO)
    assert isinstance(loaded, Translator)
    return loaded


def test_size_and_origin() -> None:
    files = [path for path in DEMO.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 30_000_000
    assert not [path for path in files if path.suffix in (".bin", ".pt", ".pkl")]
    card = (DEMO / "README.md").read_text(encoding="utf-8")
    for word in ("tatoeba.org", "CC BY 2.0", "manythings.org/anki", "## Limits"):
        assert word in card


def test_the_documentation_calls_it_a_toy() -> None:
    pages = [page for page in DOCS.glob("*.md") if not page.name.startswith("index.")]
    for page in [DEMO / "README.md", *pages]:
        text = page.read_text(encoding="utf-8")
        assert "demo/en-de" not in text or "toy" in text or "玩具" in text, page


@pytest.mark.parametrize("mode", ["ar", "tandem", "parallel"])
def test_the_command_of_the_readme(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["translate", "--model", str(DEMO), TEXTS[0], "--mode", mode]) == 0
    assert capsys.readouterr().out.strip() == "Wo ist der Bahnhof?"


def test_tandem_gives_the_greedy_text_in_fewer_passes(demo: Translator) -> None:
    texts, stats = demo.translate(TEXTS, mode="tandem", draft_tokens=8, stats=True)
    assert texts == demo.translate(TEXTS)
    assert stats.tokens_per_round > 1.5
