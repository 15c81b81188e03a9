"""Decoding modes at toy size: the report, and detection of a wrong token."""

import json
from pathlib import Path

import pytest

from outrider.cli.main import run
from outrider.decoding import Hypothesis, Round
from outrider.runtime import Result, load
from outrider_lab.bench.modes import measure as module
from outrider_lab.bench.modes.exactness import compare_with_greedy
from outrider_lab.bench.modes.measure import decode_modes, measure_modes
from outrider_lab.bench.modes.picture import draw_modes
from tests.helpers.drafted import TEXT, save_translator

TANDEM = [f"tandem γ {gamma}" for gamma in ("0", "0.25", "0.5", "0.75", "1")]
MASKED = [f"mask-predict {n}" for n in ("1 pass", "3 passes", "5 passes")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("translator"))


@pytest.fixture(scope="module")
def translator(folder):
    translator = load(folder, device="cpu")
    translator.defaults["max_new_tokens"] = 10
    return translator


def measure(translator, **changes):
    options = {"batches": (1, 2), "sentences": 2, "repeats": 1}
    return measure_modes(translator, TEXT, TEXT, **options | changes)


def test_every_mode_is_measured_at_every_batch_size(translator) -> None:
    said: list[str] = []
    result = measure(translator, report=said.append)
    assert [mode["name"] for mode in result["modes"]] == ["greedy", *TANDEM, *MASKED]
    for mode in result["modes"]:
        assert [speed["batch"] for speed in mode["speed"]] == [1, 2]
        for speed in mode["speed"]:
            low, high = speed["ratio_range"]
            assert 0 < low <= speed["ratio_to_greedy"] <= high
    greedy, exact = result["modes"][:2]
    assert [speed["ratio_to_greedy"] for speed in greedy["speed"]] == [1.0, 1.0]
    assert exact["bleu"] == greedy["bleu"]
    assert exact["identical_share"] == 1.0
    assert len(exact["acceptance_by_position"]) == 6
    # At gamma 1 only suppressed tokens are refused; this random drafter predicts some of them.
    first = [mode["acceptance_by_position"][0] for mode in result["modes"][1:6]]
    assert first[0] < 0.3 < 0.6 < first[-1]
    assert any("quality of tandem γ 0.25" in line for line in said)
    json.dumps(result)


def test_a_wrong_token_in_the_timed_runs_removes_the_speed(translator, monkeypatch) -> None:
    decode = module.decode

    def careless(backend, requests, config, **options):
        found = decode(backend, requests, config, **options)
        if config.mode == "tandem":
            found[-1] = [Hypothesis((5, 5, 5), "eos")]
        return found

    monkeypatch.setattr(module, "decode", careless)
    result = measure(translator, batches=(1,))
    greedy, exact, loose = result["modes"][:3]
    assert greedy["speed"][0]["identical"]
    assert not exact["speed"][0]["identical"]
    assert exact["speed"][0]["sentences_per_second"] is None
    assert exact["speed"][0]["ratio_to_greedy"] is None
    assert loose["speed"][0]["ratio_to_greedy"] > 0


def test_a_model_without_parts_has_one_mode(translator) -> None:
    class Plain:
        drafts, slots = None, None

    class Ctc:
        drafts, slots = None, True

    assert [mode.name for mode in decode_modes(Plain())] == ["greedy"]
    assert [mode.name for mode in decode_modes(Ctc())] == [
        "greedy",
        "ctc 1 pass",
        "ctc 2 passes",
        "ctc 3 passes",
        "ctc 5 passes",
        "ctc best of 4",
    ]


def test_small_samples_are_repeated_to_fill_a_batch() -> None:
    assert [len(chunk) for chunk in module._chunks(list("abc"), 8)] == [8]
    assert module._chunks(list("abcde"), 2) == [["a", "b"], ["c", "d"]]


def test_the_command_writes_json_and_png(folder, tmp_path: Path, capsys) -> None:
    source = tmp_path / "source.txt"
    source.write_text("a\ntwo\n", encoding="utf-8")
    written, drawn = tmp_path / "modes.json", tmp_path / "modes.png"
    options = ["--json", written, "--png", drawn, "--batch", "1", "--repeats", 1, "--sentences", 2]
    words = ["lab", "bench", "modes", folder, "--source", source, "--reference", source, *options]
    assert run([str(word) for word in words]) == 0
    assert "mask-predict 3 passes" in capsys.readouterr().out
    result = json.loads(written.read_text(encoding="utf-8"))
    assert result["machine"]["cores"] > 0
    assert set(result["data"]) == {"source", "reference"}
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_the_picture_omits_modes_without_speed(tmp_path: Path) -> None:
    def mode(family: str, bleu: float, ratio: float | None, places: list[float]) -> dict:
        speed = [{"batch": 1, "ratio_to_greedy": ratio}]
        shown = {"name": family, "label": family, "options": {}, "acceptance_by_position": places}
        return {"family": family, "bleu": bleu, "speed": speed, **shown}

    rows = [mode("ar", 30.0, 1.0, []), mode("tandem", 30.0, None, [0.8, 0.6])]
    draw_modes({"modes": rows}, tmp_path / "one.png", title="one")
    draw_modes({"modes": rows[:1]}, tmp_path / "two.png", title="two")
    assert (tmp_path / "one.png").stat().st_size > 1000


def test_exactness_lists_differing_lines(translator) -> None:
    class Careless:
        backend = translator.backend

        def results(self, chunk, **options):
            found = translator.results(chunk, **{**options, "stats": None})
            if options.get("mode") == "tandem":
                wrong = (*found[0][0].tokens[:2], 5)
                found[0] = [Result("wrong", tokens=wrong, rounds=(Round((5,), 1, None),))]
            return found

    result = compare_with_greedy(Careless(), TEXT, batch=2, max_new_tokens=8)
    assert (result["lines"], result["identical"]) == (4, 2)
    assert [one["line"] for one in result["differing"]] == [1, 3]
    first = result["differing"][0]
    assert (first["source"], first["tandem"]) == (TEXT[0], "wrong")
    assert first["first_differing_token"] == 2


def test_strict_is_compared_with_single_lines(translator) -> None:
    budgets: list[tuple[bool, int]] = []

    class Watched:
        backend = translator.backend

        def results(self, chunk, *, batch_tokens, **options):
            budgets.append(("mode" in options, batch_tokens))
            return translator.results(chunk, batch_tokens=batch_tokens, **options)

    result = compare_with_greedy(Watched(), TEXT, batch=4, strict=True, max_new_tokens=8)
    assert result["identical"] == 4
    assert dict(budgets)[False] == 1
    assert dict(budgets)[True] > 1
