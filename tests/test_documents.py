"""The pages agree with the code and with the files in results/."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from outrider.backends.native_parts import POSITIONS
from outrider.errors import ConfigError
from outrider.formats.folder import FILE_READERS, READERS
from outrider.formats.spec import POSITIONS as ALL_POSITIONS
from outrider.torch.compress.student.compare import TITLE
from outrider.torch.models import LanguageModelConfig
from outrider.torch.training.card import UNSCORED

ROOT = Path(__file__).parents[1]
FAMILIES = {
    "marian": "Marian",
    "bart": "BART",
    "mbart": "mBART",
    "m2m_100": "M2M100",
    "t5": "T5",
    "mt5": "mT5",
    "gpt2": "GPT-2",
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "ctranslate2": "CTranslate2",
    "bergamot": "Bergamot",
}
"""Names of the supported families on pages; a new reader needs a name."""
NUMBERED = re.compile(
    r"\(00[0-4]\)|\b(?:sources?|documents?) 00[0-4]|来源文档 ?00[0-4]", re.IGNORECASE
)
CODE = re.compile(r"`([^`\n]+)`")


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def result(path: str) -> Any:
    return json.loads(read(path))


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading."""
    found = page.partition(f"## {heading}\n")[2]
    assert found, heading
    return found.partition("\n## ")[0]


def read_families() -> set[str]:
    return {*READERS, *FILE_READERS}


def test_the_faq_names_every_supported_family() -> None:
    answer = section(read("docs/faq.md"), "Which models can it load?")
    for family in read_families():
        assert re.search(rf"(?<!\w){FAMILIES[family]}(?!\w)", answer), family


def test_the_page_of_peers_does_not_exclude_supported_families() -> None:
    page = section(read("docs/peers.md"), "Take something else if")
    advice = next(line for line in page.splitlines() if "model family" in line)
    for family in (*READERS, "nllb"):
        assert FAMILIES.get(family, "NLLB") not in advice.partition(":")[0]


def test_the_page_of_the_native_core_lists_its_positions() -> None:
    row = next(
        line for line in read("docs/native.md").splitlines() if line.startswith("| positions")
    )
    computed, falls_back = row.strip("| ").split(" | ")
    assert set(CODE.findall(computed)) == set(POSITIONS)
    assert {*CODE.findall(falls_back), "memory"} == {*ALL_POSITIONS, "memory"} - set(POSITIONS)


def test_how_to_add_a_part_names_files_that_exist() -> None:
    names = CODE.findall(section(read("CONTRIBUTING.md"), "Add a part"))
    paths = [name for name in names if "/" in name]
    assert len(paths) >= 5
    for path in paths:
        assert (ROOT / path).exists(), path
    assert "beam.py" in names


def test_documents_and_papers_are_named() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    pages += [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "src").rglob("*.py")]
    for path in (*pages, ROOT / "docs" / "sources.yaml", ROOT / "results" / "README.md"):
        found = NUMBERED.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found}"


def test_the_time_of_the_first_start_is_the_measured_one() -> None:
    measured = result("results/bench-start.json")
    answer = section(read("docs/faq.md"), "Why is starting slow?")
    times = [measured["seconds"], measured["packing"]["seconds"]]
    assert re.findall(r"(\d\.\d+) s\b", answer) == [f"{seconds:.2f}" for seconds in times]
    assert f"{times[1]:.2f} | {measured['packing']['mib']} MiB" in read("docs/native.md")


def test_parts_that_do_not_combine_are_refused_by_their_key() -> None:
    parts = {"memory": 4, "max_positions": 4, "position": "relative"}
    LanguageModelConfig(vocab_size=8, **parts)
    with pytest.raises(ConfigError, match=r"separable_conv needs neighbours.* leave memory out"):
        LanguageModelConfig(vocab_size=8, transition="separable_conv", **parts)


def test_the_demo_is_compared_with_its_teacher_in_ctranslate2() -> None:
    card, measured = read("demo/zh-en/README.md"), result("results/demo-zh-en.json")
    assert UNSCORED not in card
    assert TITLE in card
    assert "| times CTranslate2 int8 with the teacher |" in card
    assert "| times CTranslate2 |" not in card
    for row in measured["speed"]:
        times = f"{row['times_ctranslate2_int8_of_teacher']:.2f}"
        assert re.search(rf"\| {row['engine']} \| {row['batch']} \| [\d.]+ \| {times} \|", card)


def test_the_growth_of_mixed_heads_is_measured() -> None:
    kinds = result("results/attention.json")["kinds"]
    page = " ".join(read("docs/attention/mixed.md").split())
    assert f"to the power of {kinds['mixed']['slope']:.2f}," in page
    assert f"{kinds['causal']['slope']:.2f} for full attention" in page
    assert f"{kinds['mixed']['speedup_16k']:.1f} times less time" in page
    assert 0.5 < kinds["mixed"]["cache_bytes_64k"] / kinds["causal"]["cache_bytes_64k"] < 0.51


def episodes(curve: list[float]) -> int:
    """Return the episodes until the mean of ten updates first reaches 95 %."""
    means = [sum(curve[update - 10 : update]) / 10 for update in range(10, len(curve) + 1)]
    return 64 * next((update for update, mean in enumerate(means, 10) if mean >= 0.95), 120)


def test_the_figures_of_the_maze_are_the_measured_ones() -> None:
    page, measured = read("examples/memory-rl/README.md"), result("examples/memory-rl/memory.json")
    for name in ("Transformer", "GTrXL, gate bias 2", "GTrXL, gate bias 7"):
        runs = [one for one in measured["runs"] if one["name"] == name]
        (row,) = (
            line
            for line in page.splitlines()
            if line.startswith(f"| {name} | ") and " of 6" in line
        )
        assert re.findall(r"(\d) of 6", row) == [str(round(6 * one["solved"])) for one in runs]
        medians = [statistics.median(map(episodes, one["curves"])) for one in runs]
        assert re.findall(r"\d,\d{3}", row) == [f"{one:,.0f}" for one in medians]
    seconds: dict[str, float] = {}
    for one in measured["runs"]:
        seconds[one["name"]] = seconds.get(one["name"], 0) + one["seconds"]
    plain, *gated = (seconds[name] for name in sorted(seconds, reverse=True))
    more = sorted(f"{100 * (one / plain - 1):.0f}" for one in gated)
    assert f"{more[0]} to {more[1]} % more time" in page
    assert "claim of GTrXL in small" not in page


def test_test_sentences_of_the_quickstart_are_new_but_their_words_are_not() -> None:
    pairs = [line.split("\t") for line in read("examples/quickstart/train.tsv").splitlines()]
    for column, name in enumerate(("test.en", "test.de")):
        known = {pair[column] for pair in pairs}
        lines = read(f"examples/quickstart/{name}").splitlines()
        assert len(lines) == 200
        assert not known & set(lines)
        assert words(lines) <= words(known)


def words(lines: Any) -> set[str]:
    return set(re.findall(r"\w+", " ".join(lines).lower()))
