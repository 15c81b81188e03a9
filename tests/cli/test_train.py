"""`outrider train`, `evaluate` and `bench train` through the command line."""

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.main import build_app, run
from outrider.torch.training.folder import RunFolder

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


INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test may run where it is ignored
from outrider.cli.main import main
main()
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


def interrupt(line: list[str], folder: RunFolder, after: int) -> list[str]:
    """Start a command, stop it with Ctrl-C at a step and return its stderr."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *line], stderr=subprocess.PIPE, text=True
    )
    try:
        wanted = folder.checkpoints.folder / f"step-{after:08d}"
        deadline = time.monotonic() + 240
        while not wanted.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    return err.splitlines()


def test_ctrl_c_names_the_saved_step_and_the_command_that_continues(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    endless = ["train.steps=1000000", "train.schedule=constant", "train.log_every=1000000"]
    endless += ["train.evaluate_every=0", "train.save_every=2", "train.keep=1000000"]
    lines = interrupt(["train", "--restart", str(config), *endless], folder, after=4)
    saved = folder.checkpoints.latest()
    assert saved is not None
    assert saved.progress.step >= 4
    command = ["outrider", "train", str(config), *endless]
    assert lines[-1] == (
        f"outrider: stopped; step {saved.progress.step} is saved; this command continues from "
        f"there: {shlex.join(command)}"
    )
    assert not any(line.startswith("outrider:") for line in lines[:-1])

    end = saved.progress.step + 1
    assert run([*command[1:], f"train.steps={end}"]) == 0
    assert f"resuming from {saved.folder}" in capsys.readouterr().err


def test_ctrl_c_before_the_first_checkpoint_reports_that_no_step_is_saved(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider.torch.training.run.train_run", interrupted)
    assert run(["train", str(config)]) == 130
    assert capsys.readouterr().err == (
        "outrider: stopped; no step is saved yet (train.save_every: 3); start again with: "
        f"outrider train {config}\n"
    )
