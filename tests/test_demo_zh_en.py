"""The Chinese-English demo model: its size, licence and quality."""

from pathlib import Path

import pytest

from outrider.cli.main import run
from outrider.formats.weights import read_weights
from outrider.runtime import Translator, load

DEMO = Path(__file__).parents[1] / "demo" / "zh-en"
SAID = {
    "请问最近的地铁站在哪里？": ("subway", "station"),
    "昨天晚上我们在河边看了一场足球比赛。": ("last night", "football", "river"),
    "如果明天下雨，我们就待在家里看书。": ("rain", "tomorrow", "home"),
    "他的妹妹在北京的一家医院工作。": ("sister", "beijing", "hospital"),
}


@pytest.fixture(scope="module")
def demo() -> Translator:
    loaded = load(DEMO, backend="native")
    assert isinstance(loaded, Translator)
    return loaded


def test_size_and_origin() -> None:
    files = [path for path in DEMO.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 45_000_000
    assert not [path for path in files if path.suffix in (".bin", ".pt", ".pkl")]
    card = (DEMO / "README.md").read_text(encoding="utf-8")
    for word in ("OPUS-MT", "CC BY 4.0", "Tatoeba", "Common Voice", "## Beside its teacher"):
        assert word in card
    assert {one.kind for one in read_weights(DEMO).values()} == {"float32", "int8", "int4"}


def test_translations_of_common_sentences(demo: Translator) -> None:
    for text, found in zip(SAID, demo.translate(list(SAID)), strict=True):
        for word in SAID[text]:
            assert word in found.lower(), (text, found)


def test_a_batch_equals_single_texts(demo: Translator) -> None:
    texts = list(SAID)
    assert demo.translate(texts) == [demo.translate(text) for text in texts]


def test_the_command_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    text = next(iter(SAID))
    assert run(["translate", "--model", str(DEMO), "--backend", "native", text]) == 0
    assert "subway station" in capsys.readouterr().out
