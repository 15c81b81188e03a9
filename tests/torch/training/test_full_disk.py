"""A full disk at any time gives one sentence with the file, and no partial files."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.config import build_config
from outrider.data.prepared import open_prepared
from outrider.errors import ResourceError
from outrider.jobs.distill import distill
from outrider.run_config import RunConfig
from outrider.torch.export import export_copy, export_marian
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.log import Log
from outrider.torch.training.run import train_run
from tests.helpers.letters import save_corpus, save_translator
from tests.helpers.small_disk import BALLAST, fill, small_disk


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus and a finished run."""
    folder, dice = tmp_path_factory.mktemp("home"), random.Random(0)
    lines = ["".join(dice.choices("abcdefg ", k=9)) for _ in range(120)]
    (folder / "a").write_text("".join(f"{line}\n" for line in lines))
    (folder / "b").write_text("".join(f"{line[::-1]}\n" for line in lines))
    train_run(config(folder, folder / "run"))
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def config(home: Path, folder: Path, **changes: Any) -> RunConfig:
    values = {
        "name": "full",
        "folder": str(folder),
        "data": {
            "folder": str(home / "prepared"),
            "root": str(home),
            "train": {"source": "a", "target": "b"},
            "tokenizer": {"kind": "char", "vocab_size": 32},
            "clean": {"drop_duplicates": False},
        },
        "model": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "norm": "post",
        },
        "train": {
            "steps": 4,
            "batch_tokens": 128,
            "save_every": 2,
            "keep": 1,
            "evaluate_every": 0,
            "log_every": 1,
            "device": "cpu",
        },
    }
    return build_config(RunConfig, {**values, **changes})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != BALLAST)


def test_a_checkpoint(home: Path, disk: Path) -> None:
    run = config(home, disk / "run")
    fill(disk, leave=1_300_000)  # a checkpoint needs 1.1 MB
    message = r"\.unfinished-step-00000004: the disk is full .*checkpoints before it are kept; free"
    with pytest.raises(ResourceError, match=message):
        train_run(run)
    latest = RunFolder(disk / "run").checkpoints.latest()
    assert latest is not None
    assert latest.progress.step == 2
    assert latest.fault() == ""
    (disk / BALLAST).unlink()
    model = train_run(run)
    weights = "model.safetensors"
    assert (model / weights).read_bytes() == (home / "run" / "model" / weights).read_bytes()


def copied(home: Path, disk: Path) -> RunConfig:
    """The finished run on the small disk, without its model."""
    shutil.copytree(home / "run", disk / "run")
    shutil.rmtree(disk / "run" / "model")
    return config(home, disk / "run")


def test_the_final_model(home: Path, disk: Path) -> None:
    run = copied(home, disk)
    fill(disk, leave=200_000)  # the weights need 360 kB
    message = r"run/model: the disk is full .*; nothing was kept; free some space"
    with pytest.raises(ResourceError, match=message):
        train_run(run)
    assert "model" not in names(disk / "run")
    assert not [name for name in names(disk / "run") if "partial" in name]
    (disk / BALLAST).unlink()
    assert (train_run(run) / "model.safetensors").is_file()


def test_an_older_model_is_kept(home: Path, disk: Path) -> None:
    shutil.copytree(home / "run", disk / "run")
    run = config(home, disk / "run", name="other")
    before = (disk / "run" / "model" / "model.safetensors").read_bytes()
    fill(disk, leave=200_000)
    with pytest.raises(ResourceError, match=r"run/model is as it was"):
        train_run(run)
    assert (disk / "run" / "model" / "model.safetensors").read_bytes() == before


def test_files_written_at_the_start_of_a_run(home: Path, disk: Path) -> None:
    fill(disk, leave=0)
    with pytest.raises(ResourceError, match="the disk is full"):
        train_run(config(home, disk / "run"))


def test_the_log(disk: Path) -> None:
    log = Log(disk / "log.jsonl")
    log.write({"event": "update", "step": 1})
    fill(disk, leave=0)
    with pytest.raises(ResourceError, match=r"log\.jsonl: the disk is full .*checkpoints are kept"):
        log.write({"event": "update", "step": 2, "note": "x" * 8192})
    (disk / BALLAST).unlink()
    log.rewind(1)
    assert log.path.read_text() == '{"event": "update", "step": 1}\n'


def test_the_learning_curve(home: Path, disk: Path) -> None:
    run = copied(home, disk)
    (disk / "run" / "curve.png").unlink()
    fill(disk, leave=440_000)
    with pytest.raises(ResourceError, match=r"curve\.png: the disk is full .*nothing was written"):
        train_run(run)
    assert (disk / "run" / "model" / "model.safetensors").is_file()
    assert "curve.png" not in names(disk / "run")


@pytest.mark.parametrize("export", [export_marian, export_copy])
def test_an_export(home: Path, disk: Path, export: Any) -> None:
    fill(disk, leave=100_000)
    options = {"dtype": "float32"} if export is export_copy else {}
    message = r"disk/new: the disk is full .*; nothing was kept; free some space"
    with pytest.raises(ResourceError, match=message):
        export(home / "run" / "model", disk / "new", **options)
    assert names(disk) == []


def test_distilling(tmp_path: Path, disk: Path) -> None:
    save_translator(save_corpus(tmp_path, lines=60, valid_rows=5), tmp_path / "model")

    def run(out: Path) -> Any:
        return distill(tmp_path / "model", tmp_path / "prepared", out, progress=False)

    fill(disk, leave=4096)
    message = r"disk/out.*: the disk is full .*; finished shards are kept in .*out\.partial"
    with pytest.raises(ResourceError, match=message):
        run(disk / "out")
    assert names(disk) == ["out.partial"]
    (disk / BALLAST).unlink()
    assert run(disk / "out").manifest.splits == run(tmp_path / "whole").manifest.splits
    open_prepared(disk / "out", verify=True)
