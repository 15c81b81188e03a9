"""Checkpoints are committed in the background."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from outrider.errors import ResourceError
from outrider.torch.training.checkpoint import Checkpoint, Checkpoints, Progress
from tests.helpers.small_trainer import trainer

Commit = Callable[[Checkpoints, Path, Progress], Checkpoint]


class AtStep(TrainerCallback):
    """Calls a function when the given step begins."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self.step, self.act = step, act

    def on_step_begin(self, _: Any, state: Any, *args: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.act()


def replaced(monkeypatch: pytest.MonkeyPatch, first: Callable[[Progress], None]) -> None:
    """Call `first` before every commit of a checkpoint."""
    commit: Commit = Checkpoints.commit

    def late(self: Checkpoints, staging: Path, progress: Progress) -> Checkpoint:
        first(progress)
        return commit(self, staging, progress)

    monkeypatch.setattr(Checkpoints, "commit", late)


def steps(folder: Path) -> list[int]:
    return [one.progress.step for one in Checkpoints(folder / "checkpoints").all()]


def test_training_continues_during_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, found = threading.Event(), list[list[int]]()
    replaced(monkeypatch, lambda _: trained.wait(60) or pytest.fail("training waited"))
    run = trainer(tmp_path, steps=7, save_every=2)

    def look() -> None:
        found.append(steps(tmp_path))
        trained.set()

    run.add_callback(AtStep(3, look))  # one update after the first checkpoint
    run.run()
    assert found == [[]], "it does not count before it is on the disk"
    assert steps(tmp_path)[-1] == 7


def test_one_commit_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, most = list[int](), list[int]()

    def first(progress: Progress) -> None:
        busy.append(progress.step)
        most.append(len(busy))
        threading.Event().wait(0.05)
        busy.remove(progress.step)

    replaced(monkeypatch, first)
    trainer(tmp_path, steps=6, save_every=1, keep=6).run()
    assert most == [1] * 6
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("step", [2, 4])
def test_errors_of_a_commit_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def fail(progress: Progress) -> None:
        if progress.step == step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replaced(monkeypatch, fail)
    message = rf"step-0000000{step}: the disk is full.*; the checkpoints before it are kept"
    with pytest.raises(ResourceError, match=message):
        trainer(tmp_path, steps=4, save_every=2).run()
    assert steps(tmp_path) == ([2] if step == 4 else [])


def test_a_failing_run_keeps_saved_checkpoints(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("somebody stumbled over the cable")

    run = trainer(tmp_path, steps=6, save_every=2)
    run.add_callback(AtStep(2, fail))
    with pytest.raises(RuntimeError, match="cable"):
        run.run()
    assert steps(tmp_path) == [2]
