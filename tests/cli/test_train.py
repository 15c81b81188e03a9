"""`outrider train`, `evaluate` and `bench train` as a user calls them."""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.main import build_app, run

YAML = """
name: tiny
folder: {folder}/run
data:
  folder: {folder}/prepared
  root: {folder}
  train: {{source: train.en, target: train.de}}
  valid_rows: 5
  tokenizer: {{kind: char, vocab_size: 32}}
model:
  hidden_size: 16
  intermediate_size: 32
  num_attention_heads: 2
  encoder_layers: 1
  decoder_layers: 1
train:
  steps: 6
  batch_tokens: 128
  warmup: 2
  save_every: 3
  evaluate_every: 3
  log_every: 3
  device: cpu
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    generator = random.Random(0)
    lines = ["".join(generator.choices("abcd", k=generator.randint(2, 9))) for _ in range(80)]
    (tmp_path / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "train.de").write_text("".join(f"{line[::-1]}\n" for line in lines))
    path = tmp_path / "run.yaml"
    path.write_text(YAML.format(folder=tmp_path))
    return path


def test_train_then_evaluate(config: Path, tmp_path: Path) -> None:
    trained = CliRunner().invoke(build_app(), ["train", str(config)])
    assert trained.exit_code == 0
    model = tmp_path / "run" / "model"
    assert trained.stdout.strip() == str(model)
    assert "step 6/6" in trained.stderr
    assert "starting in" in trained.stderr

    files = [f"--source={tmp_path}/train.en", f"--reference={tmp_path}/train.de"]
    result = tmp_path / "result.json"
    scored = CliRunner().invoke(
        build_app(), ["evaluate", str(model), *files, "--json", str(result)]
    )
    assert scored.exit_code == 0
    assert "bleu" in scored.stdout
    written = json.loads(result.read_text())
    assert written["scores"]["sentences"] == 80
    assert written["decode"] == {"strategy": "beam", "beams": 5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.setps=3"], "train.setps: unknown key (did you mean 'steps'?)"),
        (["train.schedule=sqrt"], "train.schedule: got 'sqrt'"),
        (["model.hiden_size=3"], "model.hiden_size: unknown key"),
        (["model.type=gru"], "model.type: got 'gru'"),
        (["train.patience=1", "train.evaluate_every=0"], "train.patience: stops on evaluations"),
    ],
)
def test_a_mistake_in_the_config_is_one_line(
    config: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", str(config), *arguments]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(f"outrider: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--source: give --source and --reference, or --text"),
        (["--source=a", "--text=b"], "--source: give --source and --reference, or --text"),
        (["--source=a"], "--reference: source and reference belong together"),
        (
            ["--source=a", "--reference=b", "--beams=1", "--length-penalty=2"],
            "--length-penalty: has no effect with --beams 1",
        ),
        (["--source=a", "--reference=b"], "a: no such file"),
    ],
)
def test_a_mistake_in_evaluate_is_one_line(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["evaluate", str(tmp_path), *arguments]) == 2
    assert f"outrider: {message}" in capsys.readouterr().err
