"""Comparisons end to end on tiny models: trained, resumed, skipped or failed with a reason."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outrider.errors import ConfigError
from outrider_lab.bench.compare import trial as trial_module
from outrider_lab.bench.compare.picture import _short_names, draw_comparison
from outrider_lab.bench.compare.run import Budget, Comparison, compare
from outrider_lab.bench.compare.summary import failures, summarise, table, title

SEQ2SEQ = """
name: any
folder: nowhere
data: {folder: nowhere}
model:
  type: seq2seq
  hidden_size: 16
  intermediate_size: 16
  num_attention_heads: 2
  encoder_layers: 1
  decoder_layers: 1
  dropout: 0.0
train: {batch_tokens: 64, warmup: 1, learning_rate: 0.01, device: cpu, patience: 3}
evaluate: {source: a, reference: b}
"""
LANGUAGE_MODEL = SEQ2SEQ.replace("seq2seq", "language_model").replace(
    "  encoder_layers: 1\n  decoder_layers: 1\n", "  layers: 1\n"
)
SMALL = {
    "examples": 60,
    "valid_examples": 4,
    "test_examples": 3,
    "train_length": 5,
    "test_lengths": [5, 9],
}


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, Path]:
    texts = {
        "pairs": SEQ2SEQ,
        "lines": LANGUAGE_MODEL,
        "learned": LANGUAGE_MODEL.replace("layers: 1", "layers: 1\n  position: learned"),
        "wrong": SEQ2SEQ.replace("num_attention_heads: 2", "num_attention_heads: 3"),
        "drafter": SEQ2SEQ.replace("seq2seq", "drafter"),
    }
    paths = {}
    for name, text in texts.items():
        paths[name] = tmp_path / f"{name}.yaml"
        paths[name].write_text(text)
    return paths


def comparison(folder: Path, **changes: Any) -> Comparison:
    values: dict[str, Any] = {
        "task": "copy",
        "budget": Budget(steps=3),
        "settings": SMALL,
        "folder": folder / "runs",
        "own_process": False,
    }
    return Comparison(**values | changes)


def test_two_models_are_trained_and_the_others_are_named(
    configs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [configs[name] for name in ("pairs", "wrong", "lines", "drafter", "learned")]
    result = compare(chosen, comparison(tmp_path))
    status = {model["name"]: model["status"] for model in result["models"]}
    assert status == {
        "pairs": "trained",
        "wrong": "failed",
        "lines": "trained",
        "drafter": "left out",
        "learned": "trained",
    }
    assert failures(result) == [
        "wrong: failed, model.num_attention_heads: got 3, which does not divide hidden_size 16",
        "drafter: left out, copy is for a seq2seq or language_model, not for a drafter",
    ]
    pairs, lines, learned = (m for m in result["models"] if m["status"] == "trained")
    run = pairs["runs"][0]
    assert run["steps"] == 3
    assert run["tokens"] > 0
    assert run["cpu_seconds"] > 0
    assert [point["step"] for point in run["curve"]] == [1, 2, 3]
    assert [point["length"] for point in run["scores"]["points"]] == [5, 9]
    assert all(0 <= point["value"] <= 1 for point in run["scores"]["points"])
    assert pairs["settings"]["train"]["patience"] == 0, "no run stops early"
    assert lines["settings"]["model"]["layers"] == 1
    # 3 lines of 5 symbols, =, 5 symbols and an end need 36 positions; 2 * 9 symbols fit.
    assert learned["summary"]["points"][1]["value"] is not None
    heads, rows = table(result)
    assert heads[:5] == ("model", "parameters", "loss", "right at 5", "right at 9")
    assert [row[0] for row in rows] == ["pairs", "lines", "learned"]
    assert title(result) == "copy: 3 updates each, one seed"
    draw_comparison(result, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    json.dumps(result)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished_result run was trained again")

    monkeypatch.setattr(trial_module, "train_run", never)
    heard = Console(file=io.StringIO())
    again = compare(chosen, comparison(tmp_path), console=heard)
    assert again["models"] == result["models"]
    assert "is done already" in heard.file.getvalue()  # type: ignore[attr-defined]


def test_interrupted_comparison_resumes(
    configs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = trial_module.score_task
    asked: list[Path] = []

    def interrupted(task: Any, folder: Path, model: Path) -> dict[str, Any]:
        asked.append(model)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return score(task, folder, model)

    monkeypatch.setattr(trial_module, "score_task", interrupted)
    peaks = iter([10, 25, 30, 100])
    monkeypatch.setattr(trial_module, "_peak_bytes", lambda: next(peaks, 100))
    settings = comparison(tmp_path, seeds=2)
    with pytest.raises(KeyboardInterrupt):
        compare([configs["pairs"]], settings)
    heard = Console(file=io.StringIO())
    result = compare([configs["pairs"]], settings, console=heard)
    assert len(asked) == 3, "the first seed was finished_result, the second one only trained"
    assert "is trained already" in heard.file.getvalue()  # type: ignore[attr-defined]
    assert [run["seed"] for run in result["models"][0]["runs"]] == [1, 2]
    peaks_found = [run["peak_bytes"] for run in result["models"][0]["runs"]]
    assert peaks_found == [15, 70], "memory is that of the start that trained"
    assert "seeds that learn" in table(result)[0]
    for outcome in (tmp_path / "runs").rglob("comparison.json"):
        outcome.unlink()  # as after a kill at the last update
    result = compare([configs["pairs"]], settings)
    assert [run["peak_bytes"] for run in result["models"][0]["runs"]] == [None, None]
    assert [run["cpu_seconds"] for run in result["models"][0]["runs"]] == [None, None]
    assert table(result)[1][0][-1] == "-", "a start that trained nothing knows no memory"
    draw_comparison(result, tmp_path / "a.png")


@pytest.mark.slow
def test_training_process_reports_a_crash(configs: dict[str, Path], tmp_path: Path) -> None:
    rates = ("train.learning_rate=1.0e+30", "train.clip=0", "train.warmup=0")
    settings = comparison(tmp_path, own_process=True, budget=Budget(steps=2), threads=1)
    result = compare([configs["pairs"]], settings)
    (run,) = result["models"][0]["runs"]
    assert run["peak_bytes"] > 0
    broken = comparison(tmp_path, own_process=True, budget=Budget(steps=4), overrides=rates)
    (model,) = compare([configs["pairs"]], broken)["models"]
    assert model["status"] == "failed"
    assert "seed 1: train.learning_rate: the loss became" in model["messages"][0]


def test_a_time_budget_ends_at_a_checkpoint(configs: dict[str, Path], tmp_path: Path) -> None:
    budget = Budget(minutes=0.002)
    small = ("train.save_every=2", "train.evaluate_every=2")
    result = compare([configs["pairs"]], comparison(tmp_path, budget=budget, overrides=small))
    (run,) = result["models"][0]["runs"]
    assert run["seconds"] >= 0.12
    assert run["steps"] % 2 == 0
    assert title(result) == "copy: 0.002 minutes each, one seed"
    draw_comparison(result, tmp_path / "a.png")
    with pytest.raises(ConfigError, match=r"--minutes: pairs has train.schedule cosine"):
        compare(
            [configs["pairs"]],
            comparison(tmp_path, budget=budget, overrides=("train.schedule=cosine",)),
        )


def test_a_changed_key_is_an_error_of_the_run(configs: dict[str, Path], tmp_path: Path) -> None:
    """A key that changed after the run was started is an error of that run, not of the command."""
    compare([configs["pairs"]], comparison(tmp_path))
    changed = comparison(tmp_path, overrides=("train.learning_rate=0.5",))
    (model,) = compare([configs["pairs"]], changed)["models"]
    assert model["status"] == "failed"
    assert "train.learning_rate: differs from the run" in model["messages"][0]
    anew = comparison(tmp_path, overrides=("train.learning_rate=0.5",), restart=True)
    assert compare([configs["pairs"]], anew)["models"][0]["status"] == "trained"


def test_custom_corpora(configs: dict[str, Path], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    lines = [f"{word} {other}" for word in ("one", "two", "six") for other in ("cat", "dog", "cow")]
    for split in ("train", "valid", "test"):
        (corpus / f"{split}.en").write_text("".join(f"a {line}\n" for line in lines * 20))
        (corpus / f"{split}.de").write_text("".join(f"{line}\n" for line in lines * 20))
    both, two = [configs["pairs"], configs["lines"]], Budget(steps=2)
    settings = comparison(tmp_path, task="text", budget=two, data=corpus / "train.en", settings={})
    pairs, text = compare(both, settings)["models"]
    assert pairs["messages"] == ["text is for a language_model, not for a seq2seq"]
    assert text["summary"]["metric"] == "bits_per_character"
    assert 0 < text["summary"]["points"][0]["value"] < 8
    settings = comparison(
        tmp_path,
        task="translation",
        budget=two,
        data=corpus,
        settings={"vocab_size": 500, "root": str(tmp_path)},
    )
    result = compare(both, settings)
    assert title(result) == "translation of corpus: 2 updates each, one seed"
    assert str(tmp_path) not in json.dumps(result), "a result names no place of a machine"
    assert result["models"][0]["messages"] == []
    assert result["models"][0]["summary"]["metric"] == "bleu"
    assert table(result)[0][3] == "BLEU"
    draw_comparison(result, tmp_path / "a.png")


def test_one_config_with_each_of_several_values(configs: dict[str, Path], tmp_path: Path) -> None:
    vary = {"model.position": ["sinusoidal", "none"], "model.decoder_layers": [1, 2]}
    result = compare([configs["pairs"]], comparison(tmp_path, vary=vary))
    found = {
        model["name"]: (
            model["settings"]["model"]["position"],
            model["settings"]["model"]["decoder_layers"],
        )
        for model in result["models"]
    }
    assert found == {
        f"pairs position={position} decoder_layers={layers}": (position, layers)
        for position in ("sinusoidal", "none")
        for layers in (1, 2)
    }
    assert {model["status"] for model in result["models"]} == {"trained"}
    assert result["vary"] == vary
    in_picture = {model["name"] for model in _short_names(result["models"])}
    assert in_picture == {name.removeprefix("pairs ") for name in found}
    others = [*result["models"], {"name": "other"}]
    assert _short_names(others) == others


def test_two_configs_of_one_name_are_refused(configs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="have the same name"):
        compare([configs["pairs"], tmp_path / "other" / "pairs.yaml"], comparison(tmp_path))
    with pytest.raises(ConfigError, match="no such config file"):
        compare([tmp_path / "nothing.yaml"], comparison(tmp_path))


def run(
    *values: float | None, ponder: float | None = None, cpu_seconds: float | None = None
) -> dict[str, Any]:
    points = [{"length": 10 * (n + 1), "value": value} for n, value in enumerate(values)]
    if ponder is not None:
        points[0]["ponder"] = ponder
    return {
        "scores": {"metric": "accuracy", "points": points},
        "curve": [{"step": 1, "seconds": 2.0, "loss": 3.0}],
        "steps": 5,
        "seconds": 2.0,
        "cpu_seconds": cpu_seconds,
        "tokens_per_second": 9.0,
        "peak_bytes": 2**20,
    }


def test_seeds_are_summarised() -> None:
    found = summarise([run(1.0, 0.5, ponder=2.0), run(0.5, None, ponder=3.0)], trained_length=19)
    assert [point["value"] for point in found["points"]] == [0.75, 0.5]
    assert (found["points"][0]["least"], found["points"][0]["most"]) == (0.5, 1.0)
    assert found["points"][0]["ponder"] == 2.5
    assert found["learned"] == 0.5
    assert summarise([run(0.2, 0.95)], trained_length=20)["learned"] == 1.0
    assert summarise([run(0.2, 0.95)], trained_length=5)["learned"] == 0.0


def test_cpu_time_is_shown_if_all_models_have_it() -> None:
    def model(*times: float | None) -> dict[str, Any]:
        runs = [run(1.0, cpu_seconds=time) for time in times]
        summary = summarise(runs, trained_length=10)
        return {"name": "m", "parameters": 1, "status": "trained", "summary": summary, "runs": runs}

    result = {"models": [model(1.0, 3.0), model(5.0, 5.0)], "seeds": 2}
    heads, rows = table(result)
    assert [row[heads.index("CPU time, s")] for row in rows] == ["2", "5"]
    result["models"].append(model(5.0, None))
    heads, rows = table(result)
    assert [row[heads.index("time, s")] for row in rows] == ["2", "2", "2"]
