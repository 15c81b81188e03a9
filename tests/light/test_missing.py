"""One sentence names a missing package and the command that installs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from outrider.formats.spec import Seq2SeqSpec
from tests.helpers import plain_folder

RUN = """
import sys
missing = "torch transformers accelerate pyarrow sacrebleu uvicorn fastapi"
for name in missing.split():
    sys.modules[name] = None  # as if it were not installed, where it is
from outrider.cli.main import run
sys.exit(run(sys.argv[1:]))
"""
CONFIG = "{name: a, folder: b, data: {folder: c}}\n"
TORCH = "needs PyTorch, which is not installed: pip install 'outrider[train]'"


def say(*line: str | Path) -> str:
    """The single stderr line of a failing command."""
    command = [sys.executable, "-c", RUN, *map(str, line)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    (said,) = done.stderr.splitlines()
    return said


def test_training_names_missing_packages(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG)
    assert say("train", config) == f"outrider: outrider train {TORCH}"


@pytest.mark.parametrize("command", ["prepare", "evaluate", "export", "distill", "config"])
def test_every_other_command_names_the_extra(command: str, demo: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(CONFIG)
    lines: dict[str, list[str | Path]] = {
        "prepare": [run],
        "evaluate": [demo, "--text", "x"],
        "export": [demo, tmp_path / "new"],
        "distill": [demo, "--data", "x", "--out", "y"],
        "config": [run],
    }
    said = say(command, *lines[command])
    assert said.startswith(f"outrider: outrider {command} needs ")
    assert said.endswith("which is not installed: pip install 'outrider[train]'")


def test_config_explain_lists_the_same_keys_without_pytorch() -> None:
    listed = {
        code: subprocess.run(
            [sys.executable, "-c", code, "config", "--explain"],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for code in (RUN, "from outrider.cli.main import main; main()")
    }
    alone, beside = listed.values()
    assert alone == beside
    for key in ("model.hidden_size", "model.rank", "train.mask.share", "evaluate.metrics"):
        assert f"\n{key}: " in alone


def test_a_server_names_its_extra(demo: Path) -> None:
    wanted = "needs uvicorn, which is not installed: pip install 'outrider[serve]'"
    assert say("serve", f"en-de={demo}") == f"outrider: outrider serve {wanted}"


def test_an_option_that_needs_pytorch_is_named(demo: Path) -> None:
    line = ("translate", "--model", demo, "hello")
    assert say(*line, "--backend", "torch") == f"outrider: backend torch {TORCH}"
    assert say(*line, "--device", "cuda") == f"outrider: device 'cuda' {TORCH}"


def test_a_model_that_needs_pytorch_is_named(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = Seq2SeqSpec(vocab_size=plain_folder.WORDS, position="alibi", **sizes)
    folder = plain_folder.save(tmp_path / "model", config)
    said = say("translate", "--model", folder, "hello")
    assert said == f"outrider: {folder}: a model with position: alibi {TORCH}"
