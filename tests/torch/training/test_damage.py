"""A damaged checkpoint is detected and renamed; the run resumes from the one before it."""

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outrider.config import build_config
from outrider.errors import ModelError
from outrider.run_config import RunConfig
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.log import read_log
from outrider.torch.training.run import train_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a finished run of 30 steps; checkpoints at 10, 20 and 30."""
    folder = tmp_path_factory.mktemp("trained")
    generator = random.Random(0)
    lines = ["".join(generator.choices("abcdefg ", k=9)) for _ in range(120)]
    (folder / "a").write_text("".join(f"{line}\n" for line in lines))
    (folder / "b").write_text("".join(f"{line[::-1]}\n" for line in lines))
    train_run(config(folder))
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> RunFolder:
    """A copy without the model, so that the run needs its checkpoints to write it."""
    shutil.copytree(trained, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "run" / "model")
    return RunFolder(tmp_path / "copy" / "run")


def config(folder: Path, **train: Any) -> RunConfig:
    values = {
        "name": "damage",
        "folder": str(folder / "run"),
        "data": {
            "folder": str(folder / "prepared"),
            "root": str(folder),
            "train": {"source": "a", "target": "b"},
            "tokenizer": {"kind": "char", "vocab_size": 32},
            "clean": {"drop_duplicates": False},
        },
        "model": {
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_attention_heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "dropout": 0.2,
        },
        "train": {
            "steps": 30,
            "batch_tokens": 128,
            "warmup": 5,
            "save_every": 10,
            "evaluate_every": 0,
            "keep": 2,
            "average": 3,
            "log_every": 5,
            "device": "cpu",
            **train,
        },
    }
    return build_config(RunConfig, values)


def train(run: RunFolder, **changes: Any) -> str:
    """Resume the run and return its output."""
    console = Console(file=io.StringIO(), width=1000)
    train_run(config(run.path.parent, **changes), console=console)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def checkpoint(run: RunFolder, step: int) -> Path:
    return run.checkpoints.folder / f"step-{step:08d}"


def numbers(folder: Path) -> list[dict[str, Any]]:
    volatile = ("seconds", "tokens_per_second")
    records = read_log(folder / "run" / "log.jsonl")
    return [{k: v for k, v in one.items() if k not in volatile} for one in records]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 1
    path.write_bytes(raw)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def alter_progress(path: Path) -> None:
    path.write_text(path.read_text().replace('"batch": ', '"batch": 1'))


FILES = ["model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json"]


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(
    run: RunFolder, trained: Path, name: str, damage: Any
) -> None:
    damage(checkpoint(run, 30) / name)
    said = train(run)
    assert f"step-00000030: {name} " in said
    assert "kept as damaged-step-00000030" in said
    assert f"resuming from {checkpoint(run, 20)}" in said
    assert numbers(run.path.parent) == numbers(trained)
    wanted = trained / "run" / "model" / "model.safetensors"
    assert (run.model / "model.safetensors").read_bytes() == wanted.read_bytes()
    assert (run.checkpoints.folder / "damaged-step-00000030").is_dir()


@pytest.mark.parametrize("damage", [alter_progress, truncate, Path.unlink])
def test_a_damaged_cursor_is_detected(run: RunFolder, trained: Path, damage: Any) -> None:
    damage(checkpoint(run, 30) / "progress.json")
    assert "kept as damaged-step-00000030" in train(run)
    wanted = trained / "run" / "model" / "model.safetensors"
    assert (run.model / "model.safetensors").read_bytes() == wanted.read_bytes()


def test_nothing_is_renamed_if_no_checkpoint_would_remain(run: RunFolder) -> None:
    flip(checkpoint(run, 20) / "optimizer.pt")
    truncate(checkpoint(run, 30) / "rng_state.pth")
    message = r"step-00000030: rng_state\.pth changed .* no other checkpoint .*--restart"
    with pytest.raises(ModelError, match=message):
        train(run)
    assert len(run.checkpoints.all()) == 3


def test_damaged_weights_are_not_averaged(run: RunFolder) -> None:
    flip(checkpoint(run, 10) / "model.safetensors")
    said = train(run)
    assert "step-00000010: model.safetensors changed since it was written" in said
    assert "averaged the checkpoints of steps [20, 30]" in said
    provenance = json.loads((run.model / "provenance.json").read_text())
    assert provenance["training"]["averaged"] == [20, 30]


def test_weights_are_checked_again_when_they_are_averaged(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "outrider.torch.training.checkpoint.Checkpoints.set_aside_damaged", lambda _: []
    )
    flip(checkpoint(run, 10) / "model.safetensors")
    assert "steps [20, 30]" in train(run)
    for step in (20, 30):
        truncate(checkpoint(run, step) / "model.safetensors")
    shutil.rmtree(run.model)
    with pytest.raises(ModelError, match=r"step-00000020: model.* changed .*step-00000030: model"):
        train(run)


def test_a_finished_run_needs_no_checkpoint(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "copy")
    run = RunFolder(tmp_path / "copy" / "run")
    edited = run.model / "run.yaml"
    edited.write_text(edited.read_text().replace(str(trained), str(tmp_path / "copy")))
    for step in (20, 30):
        flip(checkpoint(run, step) / "optimizer.pt")
    assert "is trained already" in train(run)


def test_optimizers_without_a_checksum_are_not_read(run: RunFolder) -> None:
    for step in (10, 20, 30):
        path = checkpoint(run, step) / "progress.json"
        values = json.loads(path.read_text())
        del values["files"], values["sha256"]
        path.write_text(json.dumps(values))
    assert "averaged the checkpoints of steps [10, 20, 30]" in train(run), "weights are no pickle"
    with pytest.raises(ModelError, match=r"step-00000030: was written by a version .* no checksum"):
        train(run, steps=40)


def test_a_kill_while_a_checkpoint_is_replaced_loses_none(run: RunFolder) -> None:
    folder = checkpoint(run, 30)
    folder.rename(folder.with_name(f".unfinished-{folder.name}-old"))
    folder.with_name(f".unfinished-{folder.name}").mkdir()
    run.checkpoints.clean()
    assert [one.progress.step for one in run.checkpoints.all()] == [10, 20, 30]
    assert not list(run.checkpoints.folder.glob(".*"))
