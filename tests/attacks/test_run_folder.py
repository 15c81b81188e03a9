"""Damaged shards, checkpoints and state files of a run.

The run ends with the weights of an undamaged run or gives one error message.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outrider.files import file_sha256
from tests.helpers.attacked_run import CONFIG, write
from tests.helpers.forked import attack, command

Damage = Callable[[Path], object]


def flip(path: Path, share: float = 0.5) -> None:
    raw = bytearray(path.read_bytes())
    raw[int(len(raw) * share)] ^= 4
    path.write_bytes(raw)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def rewrite_ids(path: Path, change: Callable[[int], int]) -> None:
    table = pq.read_table(path)
    rows = [[change(token) for token in row] for row in table["target_ids"].to_pylist()]
    column = table.column_names.index("target_ids")
    table = table.set_column(column, "target_ids", pa.array(rows, pa.list_(pa.int32())))
    pq.write_table(table, path)


def rewrite_manifest(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def forge(folder: Path) -> None:
    """Write ids outside the vocabulary, with a matching checksum."""
    shard, path = folder / "train-00000.parquet", folder / "manifest.json"
    rewrite_ids(shard, lambda token: 10**6)
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"]["shards"][0]["sha256"] = file_sha256(shard)
    path.write_text(json.dumps(manifest))


SHARD, MANIFEST = "train-00000.parquet", "manifest.json"
PREPARED: dict[str, Damage] = {
    "flipped early": lambda f: flip(f / SHARD, 0.1),
    "flipped": lambda f: flip(f / SHARD),
    "flipped late": lambda f: flip(f / SHARD, 0.9),
    "cut": lambda f: cut(f / SHARD),
    "empty": lambda f: (f / SHARD).write_bytes(b""),
    "gone": lambda f: (f / SHARD).unlink(),
    "folder": lambda f: ((f / SHARD).unlink(), (f / SHARD).mkdir()),
    "fifo": lambda f: ((f / SHARD).unlink(), os.mkfifo(f / SHARD)),
    "other ids": lambda f: rewrite_ids(f / SHARD, lambda token: token ^ 1),
    "ids beyond": lambda f: rewrite_ids(f / SHARD, lambda token: 10**6),
    "ids below": lambda f: rewrite_ids(f / SHARD, lambda token: -1),
    "forged": forge,
    "validation": lambda f: flip(f / "valid-00000.parquet"),
    "tokenizer": lambda f: cut(f / "tokenizer.json"),
    "manifest cut": lambda f: cut(f / MANIFEST),
    "manifest list": lambda f: (f / MANIFEST).write_text("[]"),
    "manifest null": lambda f: (f / MANIFEST).write_text("null"),
    "manifest deep": lambda f: (f / MANIFEST).write_text("[" * 10_000),
    "manifest format": lambda f: rewrite_manifest(f / MANIFEST, format=99),
    "manifest format text": lambda f: rewrite_manifest(f / MANIFEST, format="x"),
    "manifest rows": lambda f: rewrite_manifest(f / MANIFEST, block_rows=0),
    "manifest splits": lambda f: rewrite_manifest(f / MANIFEST, splits={}),
    "manifest outside": lambda f: (f / MANIFEST).write_text(
        (f / MANIFEST).read_text().replace(SHARD, f"../{SHARD}")
    ),
    "manifest fifo": lambda f: ((f / MANIFEST).unlink(), os.mkfifo(f / MANIFEST)),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped after its second checkpoint, and the model of the complete run."""
    folder = tmp_path_factory.mktemp("run")
    config = {**CONFIG, "train": {**CONFIG["train"], "steps": 6, "save_every": 2, "keep": 3}}
    write(folder, config)
    outcome = command("train", "run.yaml", folder=folder, seconds=120)
    assert outcome.code == 0, outcome.err
    shutil.move(folder / "run" / "model", folder / "expected")
    shutil.rmtree(folder / "run" / "checkpoints" / "step-00000006")
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def weights(folder: Path) -> str:
    return file_sha256(folder / "model.safetensors")


def test_an_undamaged_run_resumes_to_the_same_weights(run: Path) -> None:
    assert attack("train", "run.yaml", folder=run, seconds=40).code == 0
    assert weights(run / "run" / "model") == weights(run / "expected")


SAMPLE = ("--strategy", "sample")  # after six updates, greedy text does not end
LEARN: dict[str, tuple[str, ...]] = {
    "train": ("train", "run.yaml"),
    "distill": ("distill", "expected", "--data", "data", "--out", "distilled", *SAMPLE),
}


@pytest.mark.parametrize("learn", LEARN)
def test_undamaged_data_is_accepted(run: Path, learn: str) -> None:
    assert attack(*LEARN[learn], folder=run, seconds=40).code == 0


@pytest.mark.parametrize("damage", PREPARED)
@pytest.mark.parametrize("learn", LEARN)
def test_damaged_data_is_refused(run: Path, damage: str, learn: str) -> None:
    shutil.rmtree(run / "run")  # a run begun with other data is refused for that reason
    PREPARED[damage](run / "data")
    outcome = attack(*LEARN[learn], folder=run, seconds=30)
    assert outcome.code == 2, f"{outcome.out}\n{outcome.err}"
    assert not (run / "run" / "model").exists()
    assert not (run / "distilled").exists()


LAST = "step-00000004"
CHECKPOINT: dict[str, Damage] = {
    "weights flipped": lambda f: flip(f / "model.safetensors"),
    "weights cut": lambda f: cut(f / "model.safetensors"),
    "weights gone": lambda f: (f / "model.safetensors").unlink(),
    "weights fifo": lambda f: (
        (f / "model.safetensors").unlink(),
        os.mkfifo(f / "model.safetensors"),
    ),
    "optimizer flipped": lambda f: flip(f / "optimizer.pt"),
    "optimizer flipped late": lambda f: flip(f / "optimizer.pt", 0.8),
    "optimizer cut": lambda f: cut(f / "optimizer.pt"),
    "optimizer empty": lambda f: (f / "optimizer.pt").write_bytes(b""),
    "random state gone": lambda f: next(f.glob("rng_state*")).unlink(),
    "random state flipped": lambda f: flip(next(f.glob("rng_state*")), 0.7),
    "scheduler cut": lambda f: cut(f / "scheduler.pt"),
    "progress cut": lambda f: cut(f / "progress.json"),
    "progress list": lambda f: (f / "progress.json").write_text("[]"),
    "progress null": lambda f: (f / "progress.json").write_text("null"),
    "progress other": lambda f: (f / "progress.json").write_text('{"step": "x"}'),
    "trainer state gone": lambda f: (f / "trainer_state.json").unlink(missing_ok=True),
    "all gone": lambda f: [path.unlink() for path in f.iterdir()],
    "a file": lambda f: (shutil.rmtree(f), f.touch()),
}


@pytest.mark.parametrize("damage", CHECKPOINT)
def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(run: Path, damage: str) -> None:
    CHECKPOINT[damage](run / "run" / "checkpoints" / LAST)
    outcome = attack("train", "run.yaml", folder=run, seconds=40)
    if outcome.code == 0:
        assert weights(run / "run" / "model") == weights(run / "expected")


NOTES: dict[str, Damage] = {
    "state cut": lambda f: cut(f / "state.json"),
    "state list": lambda f: (f / "state.json").write_text("[]"),
    "state empty": lambda f: (f / "state.json").write_text("{}"),
    "state null": lambda f: (f / "state.json").write_text("null"),
    "state fifo": lambda f: ((f / "state.json").unlink(), os.mkfifo(f / "state.json")),
    "state gone": lambda f: (f / "state.json").unlink(),
    "state config": lambda f: (f / "state.json").write_text('{"config": 3, "processes": "x"}'),
    "log cut": lambda f: cut(f / "log.jsonl"),
    "log noise": lambda f: (f / "log.jsonl").write_bytes(bytes(range(256))),
    "log other": lambda f: (f / "log.jsonl").write_text('{"a": 1}\n[]\n'),
    "lock folder": lambda f: ((f / ".lock").unlink(missing_ok=True), (f / ".lock").mkdir()),
    "config other": lambda f: (f / "run.yaml").write_text("[]"),
    "stranger": lambda f: (f / "checkpoints" / "step-x").mkdir(),
    "unfinished": lambda f: (f / "checkpoints" / ".unfinished-step-00000009").mkdir(),
}


@pytest.mark.parametrize("damage", NOTES)
def test_damaged_state_files_of_a_run(run: Path, damage: str) -> None:
    NOTES[damage](run / "run")
    outcome = attack("train", "run.yaml", folder=run, seconds=40)
    if outcome.code == 0:
        assert weights(run / "run" / "model") == weights(run / "expected")
    else:
        assert (run / "run" / "checkpoints" / LAST).is_dir(), "work was thrown away"


def test_a_foreign_pickle_is_not_loaded(run: Path) -> None:
    """A file whose checksum differs from that of its checkpoint is not unpickled."""
    evil = b"cos\nsystem\n(S'touch owned'\ntR."
    for name in ("optimizer.pt", "scheduler.pt"):
        (run / "run" / "checkpoints" / LAST / name).write_bytes(evil)
    attack("train", "run.yaml", folder=run, seconds=40)
    assert not (run / "owned").exists()
