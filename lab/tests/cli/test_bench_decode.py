"""`outrider lab bench decode` with real processes, at toy size."""

import json
from pathlib import Path

import pytest

from outrider.cli.main import run
from outrider_lab.bench.decode.isa import environment
from outrider_lab.bench.decode.sentences import SENTENCES
from tests.helpers import drafted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return drafted.save_translator(folder, drafter=False, norm="post", logits_bias=True)


def test_two_engines_are_measured_and_compared(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2", reason="install outrider[peers] to test peers")
    lines = ["two men play", "", "a dog", "where is it?", "we go home", "late"]
    (tmp_path / "source").write_text("\n".join(lines) + "\n")
    (tmp_path / "reference").write_text("\n".join(lines) + "\n")
    written = {name: tmp_path / f"speed.{name}" for name in ("json", "markdown", "png")}
    command = ["lab", "bench", "decode", str(folder), "--source", str(tmp_path / "source")]
    command += ["--reference", str(tmp_path / "reference"), "--threads", "1", "--batches", "1,2"]
    command += ["--engines", "ctranslate2-float32,outrider-torch"]
    command += ["--orders", "unsorted", "--repeats", "2"]
    for name, path in written.items():
        command += [f"--{name}", str(path)]
    assert run(command) == 0
    result = json.loads(written["json"].read_text(encoding="utf-8"))
    assert [(row["engine"], row["batch"]) for row in result["rows"]] == [
        ("outrider-torch", 1),
        ("ctranslate2-float32", 1),
        ("outrider-torch", 2),
        ("ctranslate2-float32", 2),
    ]
    for row in result["rows"]:
        assert row["identical_to_reference"] == 1.0
        assert (row["sentences"], row["repeats"]) == (5, 2)
        assert row["sentences_per_second"] > 0
        assert row["bleu"] is not None
        assert row["peak_rss_mib"] > 10
    assert {one["engine"] for one in result["missing"]} >= {"outrider-torch tandem"}
    assert result["rows"][0]["ratio_to_bare_engine"] > 1
    assert "model.safetensors" in result["weights_sha256"]
    assert result["data"]["source"]["file"] == "source"
    assert "## Batch 2, unsorted" in written["markdown"].read_text(encoding="utf-8")
    assert written["png"].stat().st_size > 10_000
    said = capsys.readouterr()
    assert "not measured: outrider-torch tandem: " in said.out
    assert f"wrote {written['json']}" in said.err


def test_every_engine_is_restricted_to_an_instruction_set(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native = pytest.importorskip("outrider.backends.native", reason="needs the native core")
    best, last = native.instruction_sets()[0], native.instruction_sets()[-1]
    command = ["lab", "bench", "decode", str(folder), "--threads", "1", "--batches", "1"]
    command += ["--engines", "outrider-native-int8", "--repeats", "1", "--sentences", "8"]
    command += ["--isa", f"{best},{last}", "--json", str(tmp_path / "speed.json")]
    assert run(command) == 0
    result = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    assert [row["isa"] for row in result["rows"]] == [best, last]
    assert f"{last}, batch 1" in capsys.readouterr().out
    assert run([*command[:-2], "--isa", "mmx"]) == 2
    assert f"--isa: got 'mmx'; this machine has {best}" in capsys.readouterr().err


def test_one_set_for_all_engines() -> None:
    assert environment(None) == {}
    assert environment("portable") == {"OUTRIDER_ISA": "portable"}
    assert environment("vnni") == {
        "OUTRIDER_ISA": "vnni",
        "CT2_FORCE_CPU_ISA": "AVX512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512_E1",
    }


def test_invalid_options_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(*options: object, model: Path = folder) -> str:
        assert run(["lab", "bench", "decode", str(model), *map(str, options)]) == 2
        return capsys.readouterr().err

    assert "--threads: got '1,x', expected numbers such as 1,2" in error("--threads", "1,x")
    assert "--batches: got '0', expected numbers such as 1,8" in error("--batches", "0")
    said = error("--engines", "ctranslate2-int9")
    assert "unknown 'ctranslate2-int9' (did you mean 'ctranslate2-int8'?); expected some" in said
    assert "--orders: unknown 'random'; expected some of sorted" in error("--orders", "random")
    assert "--reference: has no effect without --source" in error("--reference", "x")
    assert "nothing: no such file" in error("--source", tmp_path / "nothing")
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "one").write_text("a\n")
    said = error("--source", tmp_path / "two", "--reference", tmp_path / "one")
    assert "has 2 lines and" in said
    (tmp_path / "blank").write_text("\n\n")
    assert "holds no sentence of 1 to 128 tokens" in error("--source", tmp_path / "blank")
    lm = drafted.save_language_model(tmp_path / "lm")
    assert "is a language model; bench decode needs" in error(model=lm)


def test_the_built_in_sentences_are_distinct() -> None:
    assert len(set(SENTENCES)) == 64
