"""`outrider plan`: the table, the JSON file, and its errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import run
from outrider.config import load_config
from outrider.data.manifest import Manifest, Shard, Split
from outrider.errors import ConfigError
from outrider.run_config import RunConfig
from outrider.torch.plan.machine import GivenMachine
from outrider.torch.plan.plan import Figure, plan_run, show
from outrider.torch.plan.subject import PlanOptions, find_subject

YAML = """
name: tiny
folder: {folder}/run
data:
  folder: {folder}/prepared
  train: {{source: train.en, target: train.de}}
  tokenizer: {{vocab_size: 60}}
model:
  hidden_size: 16
  intermediate_size: 32
  num_attention_heads: 2
  encoder_layers: 1
  decoder_layers: 1
train: {{steps: 10, batch_tokens: 256, evaluate_every: 0, device: cpu}}
"""
MACHINE = GivenMachine(flops=1e9, utilisation=0.5, decode_utilisation=0.1)
KEYS = {
    *("parameters.total", "parameters.tokens", "parameters.encoder", "parameters.decoder"),
    *("parameters.encoder.attention.full", "parameters.encoder.feedforward"),
    *("parameters.decoder.attention.causal", "parameters.decoder.cross"),
    *("parameters.decoder.feedforward",),
    *("memory.weights", "memory.gradients", "memory.optimiser", "memory.activations"),
    *("memory.activations.encoder", "memory.activations.encoder.attention.full"),
    *("memory.activations.encoder.feedforward", "memory.activations.decoder"),
    *("memory.activations.decoder.attention.causal", "memory.activations.decoder.cross"),
    *("memory.activations.decoder.feedforward", "memory.activations.head"),
    *("memory.step", "memory.training", "memory.device", "memory.fits", "memory.decoding_state"),
    *("flops.forward", "flops.training", "speed.flops", "speed.training", "speed.decoding"),
    *("training.tokens", "training.steps", "training.time", "training.device_hours"),
    *("training.cost", "distillation.sentences", "distillation.time"),
    *("distillation.device_hours", "distillation.cost"),
    *("serving.rate", "serving.devices", "serving.memory", "serving.cost_per_hour"),
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(YAML.format(folder=tmp_path))
    return path


def planned(path: Path, *overrides: str, **options: Any) -> dict[str, Figure]:
    run_config = load_config(RunConfig, path, overrides)
    return {one.key: one for one in plan_run(run_config, PlanOptions(**options))}


def value(figures: dict[str, Figure], key: str) -> float:
    found = figures[key].value
    assert isinstance(found, int | float)
    return found


def test_numbers_given_by_hand_become_time_and_cost(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    line = ["plan", config, "--tokens", "1e6", "--device-memory", 1, "--flops", "1e9"]
    line += ["--utilisation", 0.5, "--decode-utilisation", 0.1, "--price", 2, "--json", out]
    line += ["--distill", 1000, "--serve", 50]
    assert run([str(word) for word in line]) == 0
    found = json.loads(out.read_text())
    assert found["task"] == "plan"
    assert found["name"] == "tiny"
    assert {"machine", "versions", "date"} <= found.keys()
    figures = found["figures"]
    assert figures.keys() == KEYS
    assert all(one.keys() == {"value", "unit", "how", "note"} for one in figures.values())
    number = {key: one["value"] for key, one in figures.items()}
    assert number["training.steps"] == 1e6 / 256
    assert number["training.time"] == pytest.approx(1e6 * number["flops.training"] / (1e9 * 0.5))
    assert number["training.cost"] == pytest.approx(number["training.time"] / 3600 * 2)
    sentence = 32 * number["flops.forward"]
    assert number["speed.decoding"] == pytest.approx(1e9 * 0.1 / sentence)
    assert number["distillation.time"] == pytest.approx(1000 * sentence / 1e8)
    enough = 50 / (number["speed.decoding"] * 0.7)
    assert enough <= number["serving.devices"] < enough + 1
    assert number["serving.cost_per_hour"] == 2 * number["serving.devices"]
    parts = [n for key, n in number.items() if key.startswith("memory.activations.")]
    assert sum(parts) == pytest.approx(number["memory.activations"], abs=len(parts))


def test_table_names_the_source_of_each_figure(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["plan", str(config)]) == 0
    out = capsys.readouterr().out
    assert "assumed without data" in out
    assert "of data.tokenizer; fewer for a small corpus" in out
    assert "AdamW" in out
    assert "device_hours" not in out  # without a description of the machine
    assert out.count("counted") > 10


def test_measure_times_this_machine(config: Path) -> None:
    figures = planned(config, "train.precision=auto", measure=True, rows=2, length=6, serve=1)
    for key in ("speed.training", "speed.update", "speed.decoding", "speed.flops"):
        assert figures[key].how == "measured"
        assert value(figures, key) > 0
    seconds = 10 * 256 / value(figures, "speed.training") + 10 * value(figures, "speed.update")
    assert value(figures, "training.time") == pytest.approx(seconds)


def test_devices_share_tokens_and_hold_buckets(config: Path) -> None:
    one, four = (
        planned(config, given=MACHINE, device_memory=1, devices=devices) for devices in (1, 4)
    )
    assert value(one, "training.time") == pytest.approx(4 * value(four, "training.time"))
    assert value(one, "training.device_hours") == pytest.approx(
        value(four, "training.device_hours")
    )
    assert value(four, "memory.buckets") == value(one, "memory.gradients")
    assert value(four, "memory.activations") < value(one, "memory.activations") / 3
    assert "without communication of gradients" in four["training.time"].note


def test_devices_that_share_a_model_hold_less(config: Path) -> None:
    whole, shares = (
        planned(config, f"train.shard={shard}", device_memory=1, devices=4)
        for shard in ("false", "true")
    )
    assert "memory.buckets" not in shares
    assert "memory.gathered" not in whole
    held = sum(value(whole, f"memory.{name}") for name in ("weights", "gradients", "optimiser"))
    gathered, step = value(shares, "memory.gathered"), value(shares, "memory.step")
    assert value(shares, "memory.training") == pytest.approx(held / 4 + gathered + step, abs=1)
    assert "1/4 of" in shares["memory.training"].note


def test_plan_that_does_not_fit_names_an_accumulation(config: Path) -> None:
    whole = value(planned(config), "memory.training")
    tight = planned(config, device_memory=0.7 * whole / 1e9)["memory.fits"]
    assert (tight.value, "train.accumulate=" in tight.note) == ("no", True)
    fewest = tight.note.rpartition("=")[2].split()[0]
    cut = planned(config, f"train.accumulate={fewest}", device_memory=0.7 * whole / 1e9)
    assert cut["memory.fits"].value == "yes"
    hopeless = planned(config, device_memory=1e-6)["memory.fits"]
    assert "no accumulation makes it fit" in hopeless.note


def test_rows_are_those_of_the_batch_plan(config: Path) -> None:
    """Rows are multiples of eight where possible, so an update may be smaller than its budget."""
    run_config = load_config(RunConfig, config, ["train.batch_tokens=600"])
    subject = find_subject(run_config, PlanOptions())
    assert [subject.rows(1), subject.rows(2), subject.rows(1, 4), subject.rows(99)] == [16, 8, 4, 1]
    figures = planned(config, "train.batch_tokens=600", given=MACHINE, device_memory=1)
    assert value(figures, "training.tokens") == 10 * 16 * 32
    assert value(figures, "training.steps") == 10


def test_lengths_and_vocabulary_of_prepared_data_are_used(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    folder.mkdir()
    shard = Shard(
        name="train-0.parquet", rows=10, sha256="0" * 64, source_tokens=90, target_tokens=121
    )
    Manifest(
        task="translation",
        config={},
        inputs=(),
        tokenizer={"vocab_size": 77},
        block_rows=10,
        splits={"train": Split(shards=(shard,), rows_read=10, dropped={})},
    ).write(folder)
    shape = find_subject(load_config(RunConfig, config), PlanOptions()).shape
    assert (shape.length, shape.vocab_size) == (16, 77)  # 12.1 and the end token, rounded up


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tokens", "0"], "--tokens: got 0, expected more than 0"),
        (["--devices", "0"], "--devices: got 0, expected more than 0"),
        (["--devices", "8"], "--device-memory: is required: the GB"),
        (["--flops", "1e14"], "--device-memory: is required: the GB"),
        (["--flops", "0", "--device-memory", "80"], "--flops: got 0, expected more than 0"),
        (["--flops", "1", "--measure", "--device-memory", "80"], "--flops: has no effect with"),
        (["--utilisation", "0.4"], "--utilisation: has no effect without --flops"),
        (
            ["--flops", "1", "--decode-utilisation", "2", "--device-memory", "1"],
            "--decode-utilisation: got 2, expected a share",
        ),
        (["--busy", "1.5"], "--busy: got 1.5, expected a share"),
        (["--serve", "5"], "--serve: needs a machine: add --measure"),
        (["--distill", "5"], "--distill: needs a machine: add --measure"),
        (["--price", "5"], "--price: needs a machine: add --measure"),
    ],
)
def test_errors_name_the_option_and_the_fix(
    config: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(config), *options]) == 2
    assert said in capsys.readouterr().err


def test_unknown_device_memory_is_an_error(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.torch.plan.plan.machine", lambda: {"memory_gib": None})
    with pytest.raises(ConfigError, match="--device-memory: is required on this system"):
        planned(config)


@pytest.mark.parametrize(
    ("overrides", "options", "said"),
    [
        (["data.train=null", "data.tokenizer={}"], {}, "--vocab-size: is required, as"),
        (["model={type: language_model}"], {"length": 9}, "--length: of running text is"),
    ],
)
def test_missing_information_is_requested(
    config: Path, overrides: list[str], options: dict[str, int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        find_subject(load_config(RunConfig, config, overrides), PlanOptions(**options))


def test_side_decoders_and_teachers(config: Path, tmp_path: Path) -> None:
    target = find_subject(load_config(RunConfig, config), PlanOptions()).build()
    target.save_pretrained(tmp_path / "target")
    ride = [f"model={{type: drafter, target: {tmp_path / 'target'}}}"]
    with pytest.raises(ConfigError, match="--serve: a drafter does not decode alone"):
        planned(config, *ride, serve=1.0, given=MACHINE, device_memory=1)
    with pytest.raises(ConfigError, match=r"--vocab-size: comes from .*; leave it out"):
        planned(config, *ride, vocab_size=9)
    figures = planned(config, *ride)
    assert value(figures, "parameters.beside") == sum(one.numel() for one in target.parameters())
    assert "memory.decoding_state" not in figures
    with pytest.raises(ConfigError, match=r"train\.teacher: is not supported by plans; pass"):
        planned(config, f"train.teacher={tmp_path / 'target'}")


@pytest.mark.parametrize(
    ("number", "unit", "shown"),
    [
        (1_234_567, "", "1,234,567"),
        (0.25, "tokens/s", "0.25 tokens/s"),
        (999, "B", "999 B"),
        (12_340_000, "B", "12.3 MB"),
        (90_000, "s", "25.0 hours"),
        (0.5, "s", "0.5 s"),
        (3 * 365 * 86400, "s", "3.0 years"),
        ("yes", "", "yes"),
    ],
)
def test_values_are_formatted_for_readers(number: float | str, unit: str, shown: str) -> None:
    assert show(Figure("any", number, unit, "computed")) == shown
