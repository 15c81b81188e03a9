"""`outrider lab compare` on the command line."""

import json
from pathlib import Path

import pytest

from outrider_lab.bench.compare import run as compare_module
from outrider_lab.cli import compare as compare_command

YAML = """
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
train: {batch_tokens: 64, warmup: 1, device: cpu}
"""
SMALL = ("examples=40", "valid_examples=3", "test_examples=2", "train_length=4", "test_lengths=[4]")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        compare_module,
        "_train_in_process",
        lambda job, quiet: compare_module.run_trial(job, compare_module.Console(quiet=True)),
    )
    path = tmp_path / "tiny.yaml"
    path.write_text(YAML)
    return path


def test_it_trains_prints_writes_and_draws(command, config: Path, tmp_path: Path) -> None:
    result, picture = tmp_path / "a.json", tmp_path / "a.png"
    options = [f"--set=task.{setting}" for setting in SMALL]
    options += ["--set=model.dropout=0.0", f"--folder={tmp_path}/runs", "--steps=2"]
    code, out, err = command(
        "lab", "compare", config, "--task", "reverse", *options, "--json", result, "--png", picture
    )
    assert code == 0
    assert "reverse: 2 updates each" in out
    assert "tiny" in out
    assert "1 of 1: tiny, seed 1" in err
    assert err.endswith(f"wrote {picture}\n")
    written = json.loads(result.read_text())
    assert written["task"]["train_length"] == 4
    assert written["models"][0]["settings"]["model"]["dropout"] == 0.0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_failed_model_is_named_and_sets_the_exit_code(
    command, config: Path, tmp_path: Path
) -> None:
    options = [f"--set=task.{setting}" for setting in SMALL]
    code, out, _ = command(
        *("lab", "compare", config, "--task=copy", "--steps=2", "--set=model.hidden_size=15"),
        *options,
        f"--folder={tmp_path}/runs",
    )
    assert code == 2
    assert "tiny: failed, model.num_attention_heads: got 2, which does not divide" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--steps: give either --steps or --minutes"),
        (("--steps=2", "--minutes=1"), "--steps: give either --steps or --minutes"),
        (("--steps=2", "--set=task.seed"), "task.seed: is written key=value"),
        (("--steps=2", "--set=task.nothing=1"), "task.nothing: unknown key"),
        (
            ("--steps=2", "--vary=model.position"),
            "--vary model.position: is written key=value,value",
        ),
        (
            ("--steps=2", "--vary=model.clip={a: 1}"),
            "--vary model.clip={a: 1}: is written key=value",
        ),
        (("--steps=2", "--vary=task.seed=1,2"), "--vary task.seed=1,2: a task is the same for all"),
        (("--steps=2", "--data=x"), "--data: has no effect on copy"),
    ],
)
def test_user_errors_give_one_line(command, config: Path, options, message: str) -> None:
    code, _, err = command("lab", "compare", config, "--task=copy", *options)
    assert code == 2
    assert f"outrider: {message}" in err
    assert err.count("\n") == 1


def test_interrupt_explains_how_to_continue(
    command, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_module, "_train_in_process", interrupted)
    code, _, err = command(
        *("lab", "compare", config, "--task=copy", "--steps=2", f"--folder={tmp_path}/runs"),
        *(f"--set=task.{setting}" for setting in SMALL),
    )
    assert code == 130
    assert err.splitlines()[-1] == "outrider: stopped; the same command continues"


def test_task_settings_are_separated_from_the_others() -> None:
    found = compare_command._divide(["task.test_lengths=[4, 5]", "train.clip=0"])
    assert found == ({"test_lengths": [4, 5]}, ("train.clip=0",))


def test_values_to_vary_are_read_as_yaml() -> None:
    assert compare_command._values("model.dropout=0.1, null,on,0.1") == (
        "model.dropout",
        [0.1, None, "on"],
    )
