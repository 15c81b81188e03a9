"""Exact resume: a run killed with SIGKILL in epochs 1, 2 and 3 ends as an undisturbed run.

Every logged number and the bytes of the final weights must be equal, on one process and on two.
Dropout is on and gradients are accumulated, so all random state matters.
"""

import random
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.launch import Run

pytestmark = [pytest.mark.slow, pytest.mark.dist]

STEPS = 75


def config(corpus: Path) -> dict[str, Any]:
    return {
        "name": "resume",
        "seed": 3,
        "data": {
            "folder": str(corpus / "prepared"),
            "root": str(corpus),
            "train": {"source": "train.en", "target": "train.de"},
            "valid_rows": 12,
            "tokenizer": {"kind": "char", "vocab_size": 64},
        },
        "model": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_attention_heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "dropout": 0.2,
        },
        "train": {
            "steps": STEPS,
            "batch_tokens": 320,
            "accumulate": 2,
            "warmup": 10,
            "precision": "bfloat16",
            "save_every": 4,
            "keep": 1,
            "average": 3,
            "evaluate_every": 8,
            "stop_metric": "bleu",
            "log_every": 1,
        },
    }


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    generator = random.Random(0)
    folder = tmp_path / "corpus"
    folder.mkdir()
    words = ["".join(generator.choices("abcdefgh", k=generator.randint(1, 5))) for _ in range(40)]
    lines = [" ".join(generator.choices(words, k=generator.randint(1, 5))) for _ in range(420)]
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (folder / "train.de").write_text("".join(f"{line[::-1]}\n" for line in lines))
    return folder


def kill_in_epoch(run: Run, epoch: int, *, everyone: bool) -> None:
    """Kill all processes, or one worker only, at a random moment of an epoch."""
    process = run.start()
    wanted = random.randint(1, 6)
    log = run.folder / "log.jsonl"
    while not log.exists() or log.read_text().count(f'"epoch": {epoch}, ') < wanted:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    launcher = psutil.Process(process.pid)
    workers = launcher.children()  # under torchrun; they would survive it
    for victim in [launcher, *workers] if everyone else workers[-1:]:
        victim.kill()
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert run.updates()[-1]["epoch"] >= epoch
    assert not run.weights.exists()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("processes", "shard"), [(1, False), (2, False), (2, True)])
def test_killed_in_three_epochs_equals_undisturbed(
    tmp_path: Path, corpus: Path, processes: int, shard: bool
) -> None:
    values = config(corpus)
    values["train"] |= {"shard": shard}
    undisturbed = Run(tmp_path / "undisturbed", values, processes=processes)
    undisturbed.finish()
    assert undisturbed.updates()[-1]["epoch"] >= 3

    killed = Run(tmp_path / "killed", values, processes=processes)
    for epoch in range(3):
        kill_in_epoch(killed, epoch, everyone=processes == 1 or epoch != 1)
    assert "resuming from" in killed.finish()

    assert killed.log() == undisturbed.log()
    assert killed.weights_hash() == undisturbed.weights_hash()
    assert [record["step"] for record in killed.updates()] == list(range(1, STEPS + 1))
    assert not list(killed.folder.rglob(".unfinished*"))


@pytest.mark.timeout(600)
def test_a_killed_worker_is_restarted(tmp_path: Path, corpus: Path) -> None:
    """Under `torchrun --max-restarts` the run resumes, and every step is logged once."""
    values = config(corpus)
    values["train"] |= {"steps": 24, "shard": True}
    undisturbed = Run(tmp_path / "undisturbed", values, processes=2)
    undisturbed.finish()
    run = Run(tmp_path / "killed", values, processes=2, restarts=1)
    process = run.start()
    log = run.folder / "log.jsonl"
    while not log.exists() or log.read_text().count('"update"') < 9:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    psutil.Process(process.pid).children()[-1].kill()
    output, _ = process.communicate(timeout=540)
    assert process.returncode == 0, output
    assert "resuming from" in output
    assert run.log() == undisturbed.log()
    assert run.weights_hash() == undisturbed.weights_hash()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("processes", "shard"), [(1, False), (4, True)])
def test_another_number_of_processes_resumes(
    tmp_path: Path, corpus: Path, processes: int, shard: bool
) -> None:
    """A run killed on two processes resumes with the same batches in order, up to rounding."""
    values = config(corpus)
    values["model"] |= {"dropout": 0.0}
    values["train"] |= {"steps": 20, "precision": "float32", "stop_metric": "loss", "average": 1}
    undisturbed = Run(tmp_path / "undisturbed", values, processes=2)
    undisturbed.finish()
    values["train"] |= {"shard": shard}
    first = Run(tmp_path / "killed", values, processes=2)
    process = first.start()
    log = first.folder / "log.jsonl"
    while not log.exists() or log.read_text().count('"update"') < 9:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    launcher = psutil.Process(process.pid)
    for victim in [launcher, *launcher.children()]:
        victim.kill()
    process.communicate(timeout=120)
    values["train"] |= {"shard": shard and processes > 1}
    output = Run(first.folder, values, processes=processes).finish()
    assert f"started on 2 process(es), resuming on {processes}" in output
    for mine, theirs in zip(first.updates(), undisturbed.updates(), strict=True):
        for key in ("step", "epoch", "tokens", "learning_rate"):
            assert mine[key] == theirs[key]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    found, wanted = (load_file(run.weights) for run in (first, undisturbed))
    for key, weight in wanted.items():
        torch.testing.assert_close(found[key], weight, rtol=0, atol=2e-3, msg=key)


@pytest.mark.timeout(600)
def test_a_killed_run_that_started_from_another_model(tmp_path: Path, corpus: Path) -> None:
    """Omitted layers, frozen parts and an added token are the same after a kill."""
    values = config(corpus)
    values["model"] |= {"encoder_layers": 2}
    values["train"] |= {"steps": 4, "evaluate_every": 0, "stop_metric": "loss"}
    Run(tmp_path / "first", values).finish()
    values = config(corpus)
    values["data"] |= {"folder": str(corpus / "again"), "tokenizer": {"new_tokens": ["<tag>"]}}
    values["model"] = {
        "start": str(tmp_path / "first" / "model"),
        "keep_layers": {"encoder": [1]},
        "freeze": ["encoder"],
        "dropout": 0.2,
    }
    undisturbed = Run(tmp_path / "undisturbed", values)
    undisturbed.finish()
    killed = Run(tmp_path / "killed", values)
    for epoch in range(2):
        kill_in_epoch(killed, epoch, everyone=True)
    assert "resuming from" in killed.finish()
    assert killed.log() == undisturbed.log()
    assert killed.weights_hash() == undisturbed.weights_hash()
