"""Rows, tables and the picture of the decode benchmark, from synthetic measurements."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider_lab.bench.decode.engines import EnginePlan, TimeSplit
from outrider_lab.bench.decode.picture import draw_decode_speed
from outrider_lab.bench.decode.plan import Setting
from outrider_lab.bench.decode.rows import decode_rows
from outrider_lab.bench.decode.speed import Measured, Speeds
from outrider_lab.bench.decode.table import NARROW, decode_markdown, shown_columns, shown_row

ONE = Setting(1, "unsorted", (1, 2))
EIGHT = Setting(8, "sorted", (1,))


def measured(
    name: str, *seconds: list[float], mode: str = "ar", threads: int = 1, **changes: Any
) -> Measured:
    """Four sentences one by one; `seconds` holds one value per repeat."""
    plan = EnginePlan(name, "torch", Path(), threads=threads)
    batches = {at: [at] for at, spent in enumerate(seconds[0]) if spent}
    one = Measured(plan, mode, ONE, load_seconds=0.25, batches=batches)
    one.seconds = [{at: spent for at, spent in enumerate(row) if spent} for row in seconds]
    one.texts = {at: f"text {at}" for at in batches}
    one.tokens, one.peak_mib = 10 * len(batches) * len(seconds), 64.0
    for key, value in changes.items():
        setattr(one, key, value)
    return one


def rows(*measurements: Measured, references: list[str] | None = None) -> list[dict[str, Any]]:
    return decode_rows(Speeds(list(measurements)), references)


def test_speed_is_that_of_the_median_repeat() -> None:
    (row,) = rows(measured("a", [1, 1, 1, 1], [2, 2, 2, 2], [9, 9, 9, 9]))
    assert row["sentences_per_second"] == 0.5
    assert row["tokens_per_second"] == 5.0
    assert (row["latency_p50_ms"], row["latency_p95_ms"]) == (2000.0, 9000.0)
    assert (row["sentences"], row["repeats"], row["peak_rss_mib"]) == (4, 3, 64.0)
    assert row["ratio_to_ctranslate2_int8"] is None
    assert row["best_threads"]


def test_ratios_are_computed_per_repeat_on_common_batches() -> None:
    peer = measured("ctranslate2-int8", [2, 2, 2, 2], [8, 8, 8, 8])  # disturbed by other load
    ours = measured("a", [0, 1, 0, 0.5], [0, 4, 0, 2])
    found = rows(peer, ours)
    assert found[0]["ratio_to_ctranslate2_int8"] == 1.0
    assert found[1]["ratio_to_ctranslate2_int8"] == round(4 / 1.5, 3)
    assert found[1]["sentences"] == 2


def test_best_settings_are_compared() -> None:
    found = rows(
        measured("ctranslate2-int8", [2, 2, 2, 2]),
        measured("ctranslate2-int8", [4, 4, 4, 4], threads=2),
        measured("a", [1, 1, 1, 1]),
        measured("a", [0.5, 0.5, 0.5, 0.5], threads=2),
        measured("transformers", [8, 8, 8, 8]),
    )
    assert [row["best_threads"] for row in found] == [True, False, False, True, True]
    assert [row["ratio_to_ctranslate2_int8"] for row in found] == [1.0, 1.0, 2.0, 8.0, 0.25]
    best = [row["best_ratio_to_ctranslate2_int8"] for row in found]
    assert best == [1.0, None, None, 4.0, 0.25]
    assert [row["ratio_to_hf_generate"] for row in found] == [4.0, None, 8.0, None, 1.0]


def test_other_settings_are_not_compared() -> None:
    other = measured("a", [1, 1, 1, 1], setting=EIGHT)
    assert (
        rows(measured("ctranslate2-int8", [2, 2, 2, 2]), other)[1]["ratio_to_ctranslate2_int8"]
        is None
    )


def test_output_is_compared_with_own_greedy_and_the_reference() -> None:
    greedy = measured("a", [1, 1, 1, 1], texts={0: "p", 1: "q", 2: "r", 3: "s"})
    tandem = measured("a", [1, 1, 1, 1], mode="tandem", texts={0: "p", 1: "q", 2: "r", 3: "x"})
    unsteady = replace(tandem, unstable={0})
    torch = measured("outrider-torch", [1, 1, 0, 0], texts={0: "p", 1: "z"})
    rest = measured("outrider-torch", [0, 0, 1, 0], texts={2: "r"}, setting=EIGHT)
    shallow = replace(greedy, plan=replace(greedy.plan, shallow=True))
    found = rows(greedy, tandem, unsteady, torch, rest, shallow)
    assert [row["identical_to_own_greedy"] for row in found] == [None, 0.75, 0.5, *[None] * 3]
    shares = [row["identical_to_reference"] for row in found]
    assert shares == [0.6667, 0.6667, 0.3333, 1.0, 1.0, None]


def test_quality_needs_all_texts() -> None:
    references = ["the cat sat on the mat", "a dog barked at the moon"]
    whole = measured("a", [1, 1], texts=dict(enumerate(references)))
    part = measured("b", [1, 0], texts={0: references[0]})
    found = rows(whole, part, replace(whole), references=references)
    assert found[0]["bleu"] == pytest.approx(100)
    assert found[0]["chrf"] == pytest.approx(100)
    assert found[2]["bleu"] == found[0]["bleu"]
    assert (found[1]["bleu"], found[1]["chrf"]) == (None, None)


def time_split() -> TimeSplit:
    seen = TimeSplit(wall=1.0, text=0.2, sentences=4)
    seen.core.update({"encode": 0.1, "extend": 0.4, "draft": 0.1})
    seen.statistics = {"rounds": 5, "tokens_per_round": 3.2}
    return seen


def test_the_time_split_is_per_sentence() -> None:
    (row,) = rows(measured("a", [1, 1, 1, 1], mode="tandem", time_split=time_split()))
    assert row["ratio_to_bare_engine"] == round(0.8 / 0.6, 3)
    expected = {"draft": 25.0, "encode": 25.0, "verify": 100.0, "loop": 50.0, "text": 50.0}
    assert row["time_split_ms"] == pytest.approx(expected)
    assert row["tokens_per_round"] == 3.2
    (row,) = rows(measured("a", [1, 1, 1, 1], time_split=time_split()))
    assert "step" in row["time_split_ms"]
    seen = time_split()
    seen.core = {"encode": 0.1, "draft_and_verify": 0.5}
    seen.statistics["seconds"] = {"draft": 0.1}
    (split,) = rows(measured("a", [1, 1, 1, 1], mode="tandem", time_split=seen))
    assert split["time_split_ms"] == pytest.approx(expected)
    assert row["tokens_per_round"] is None


@pytest.fixture
def result() -> dict[str, Any]:
    measurements = [
        measured("ctranslate2-int8", [2, 2, 2, 2]),
        measured("outrider-native-int8", [1, 1, 1, 1], mode="tandem", time_split=time_split()),
        measured("outrider-native-int8", [1500, 1, 1, 1], mode="tandem", threads=2),
        measured("outrider-native-int8", [1, 1, 1, 1], setting=EIGHT),
        measured("other", [1, 1, 1, 1], setting=Setting(8, "unsorted", (1,))),
    ]
    return {
        "model": "demo/en-de",
        "sentences": 4,
        "repeats": 1,
        "rows": rows(*measurements),
        "missing": [{"engine": "transformers", "reason": "norm is 'pre'"}],
        "machine": {"processor": "A processor", "instructions": ["avx2", "amx_int8"], "cores": 2},
        "versions": {"python": "3.11", "torch": "2.13", "ctranslate2": "4.8"},
    }


def test_markdown_lists_every_setting_and_missing_engines(result: dict[str, Any]) -> None:
    page = decode_markdown(result)
    assert "demo/en-de on A processor (avx2, amx_int8; 2 cores): 4 sentences, 1 repeat;" in page
    assert "ctranslate2 4.8." in page
    for title in ("## Batch 1\n", "## Batch 8, sorted\n", "## Batch 8, unsorted\n"):
        assert page.count(title) == 1
    assert (
        "| outrider-native-int8 | tandem | 1 * | 1.00 | 10.00 | 1,000 | 1,000 | 2.00 | 2.00 |"
        in page
    )
    assert (
        "| outrider-native-int8 | tandem | 25.00 | 25.00 | 100.00 | 50.00 | 50.00 | 3.20 |" in page
    )
    assert "- transformers: norm is 'pre'" in page
    for line in page.splitlines():
        assert line.count("|") in (0, 9, 13), line


def test_columns_without_values_are_hidden(result: dict[str, Any]) -> None:
    columns = shown_columns(result, NARROW)
    assert "bleu" not in columns
    assert shown_row(result["rows"][0], columns)[:4] == ["ctranslate2-int8", "ar", "1 *", "0.50"]


def test_the_picture_is_drawn(result: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_decode_speed(result, tmp_path / "new" / "speed.png")
    assert (tmp_path / "new" / "speed.png").stat().st_size > 10_000
    draw_decode_speed({**result, "rows": []}, tmp_path / "empty.png")
