"""Checkpoints are atomic, and pruning keeps the right ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from outrider.errors import ModelError
from outrider.torch.training.checkpoint import Checkpoint, Checkpoints, Progress, publish, select


def save(checkpoints: Checkpoints, step: int, score: float | None = None) -> Checkpoint:
    staging = checkpoints.stage(step)
    (staging / "optimizer.pt").write_bytes(b"state")
    (staging / "model.safetensors").write_bytes(b"weights")
    return checkpoints.commit(staging, Progress(step=step, cursor={"epoch": 0}, score=score))


def steps(found: list[Checkpoint]) -> list[int]:
    return [one.progress.step for one in found]


def test_an_uncommitted_checkpoint_is_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    save(checkpoints, 10)
    (checkpoints.stage(20) / "optimizer.pt").write_bytes(b"half")
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.progress.step == 10
    checkpoints.clean()
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000010"]


def test_progress_is_saved_and_loaded(tmp_path: Path) -> None:
    progress = Progress(step=7, cursor={"epoch": 1, "batch": 3}, tokens=99, seconds=0.1, best=2.5)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.commit(checkpoints.stage(7), progress)
    assert checkpoints.all()[0].progress == progress


def test_nothing_saved_yet(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none")
    checkpoints.clean()
    assert checkpoints.latest() is None


def test_prune_keeps_some_to_resume_and_weights_to_average(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in range(10, 70, 10):
        save(checkpoints, step)
    checkpoints.prune(keep=2, average=4, by="last")
    assert steps(checkpoints.all()) == [30, 40, 50, 60]
    assert [one.resumable for one in checkpoints.all()] == [False, False, True, True]


def test_prune_keeps_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step, score in [(10, 3.0), (20, 1.0), (30, 2.0), (40, 4.0), (50, 5.0)]:
        save(checkpoints, step, score)
    checkpoints.prune(keep=1, average=2, by="lowest")
    assert steps(checkpoints.all()) == [20, 30, 50]
    assert steps(select(checkpoints.all(), 2, "lowest")) == [20, 30]
    assert steps(select(checkpoints.all(), 1, "highest")) == [50]


def test_unscored_checkpoints_fall_back_to_the_last(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    save(checkpoints, 20)
    assert steps(select(checkpoints.all(), 2, "highest")) == [20]


def test_publish_replaces_an_older_folder(tmp_path: Path) -> None:
    for content in ("old", "new"):
        staging = tmp_path / "staging"
        staging.mkdir()
        (staging / content).write_text(content)
        publish(staging, tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    found = save(checkpoints, 10)
    (found.folder / "progress.json").write_text("{")
    with pytest.raises(ModelError, match=r"step-00000010.progress\.json: is not JSON.*; delete"):
        checkpoints.latest()


def test_patience_counts_evaluations_without_a_better_score() -> None:
    progress = Progress(step=1)
    for score, stale in [(5.0, 0), (6.0, 1), (4.0, 0), (4.0, 1)]:
        progress = progress.after_evaluation(score, lower_is_better=True, patience=2)
        assert (progress.stale, progress.stopped) == (stale, False)
    progress = progress.after_evaluation(9.0, lower_is_better=True, patience=2)
    assert progress.stopped
    assert progress.best == 4.0


def test_bleu_is_better_when_higher_and_no_patience_never_stops() -> None:
    progress = replace(Progress(step=1), best=30.0, stale=100)
    worse = progress.after_evaluation(29.0, lower_is_better=False, patience=0)
    assert (worse.best, worse.stopped) == (30.0, False)
    assert worse.after_evaluation(31.0, lower_is_better=False, patience=0).best == 31.0
