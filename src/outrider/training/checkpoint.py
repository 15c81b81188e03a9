"""Checkpoints that are either whole or not there, whatever kills the process.

A checkpoint is written under a hidden name, flushed to disk and renamed: a folder called `step-...`
is complete. What a killed process left behind is removed at the next start. Checkpoints that are
too old to resume from keep their weights while averaging still wants them, and nothing else.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from outrider.data.durable import flush
from outrider.errors import ModelError

__all__ = ["Checkpoint", "Checkpoints", "Progress", "publish", "select"]

_NAME = "step-{:08d}"
_HIDDEN = ".unfinished-"
_PROGRESS = "progress.json"
_OPTIMIZER = "optimizer.pt"


@dataclass(frozen=True)
class Progress:
    """Where a run stands beyond weights and optimizer: all else that resuming needs to know."""

    step: int = 0
    cursor: dict[str, Any] = field(default_factory=dict)
    """The first batch no update has seen yet."""
    tokens: int = 0
    """Target tokens trained on so far."""
    seconds: float = 0.0
    """Wall time spent so far, over all starts."""
    score: float | None = None
    """The stop metric at this very step, if it was evaluated."""
    best: float | None = None
    """The best stop metric so far."""
    stale: int = 0
    """Evaluations since the best one."""
    stopped: bool = False
    """True once early stopping has ended the run."""

    def judged(self, score: float, *, lower_is_better: bool, patience: int) -> "Progress":
        """Take in a new score: a better one restarts the patience, a worse one uses it up."""
        sign = -1 if lower_is_better else 1
        if self.best is None or sign * score > sign * self.best:
            return replace(self, score=score, best=score, stale=0)
        stale = self.stale + 1
        return replace(self, score=score, stale=stale, stopped=0 < patience <= stale)


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint on disk."""

    folder: Path
    progress: Progress

    @property
    def resumable(self) -> bool:
        """Whether the optimizer is still there, or only the weights."""
        return (self.folder / _OPTIMIZER).exists()


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[Checkpoint]:
        """Every complete checkpoint, oldest first."""
        folders = sorted(self.folder.glob(_NAME.format(0)[:-8] + "*"))
        return [Checkpoint(folder, _read_progress(folder)) for folder in folders]

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint a run can resume from."""
        return next((found for found in reversed(self.all()) if found.resumable), None)

    def clean(self) -> None:
        """Remove what a killed process left half-written or half-deleted."""
        for leftover in self.folder.glob(f"{_HIDDEN}*"):
            shutil.rmtree(leftover)

    def stage(self, step: int) -> Path:
        """Return a folder to write into; it counts for nothing before `commit`."""
        staging = self.folder / (_HIDDEN + _NAME.format(step))
        staging.mkdir(parents=True, exist_ok=True)
        return staging

    def commit(self, staging: Path, progress: Progress) -> Checkpoint:
        """Flush a staged checkpoint to disk and give it its name."""
        (staging / _PROGRESS).write_text(json.dumps(asdict(progress), indent=2) + "\n")
        final = self.folder / _NAME.format(progress.step)
        publish(staging, final)
        return Checkpoint(final, progress)

    def prune(self, *, keep: int, average: int, by: Literal["last", "lowest", "highest"]) -> None:
        """Keep `keep` checkpoints to resume from, and the weights of those that get averaged."""
        found = self.all()
        wanted = {one.folder for one in select(found, average, by)}
        for old in found[:-keep]:
            if old.folder not in wanted:
                _discard(old.folder)
            elif old.resumable:
                (old.folder / _OPTIMIZER).unlink()


def select(
    found: Sequence[Checkpoint], count: int, by: Literal["last", "lowest", "highest"]
) -> list[Checkpoint]:
    """Choose the `count` checkpoints to average: the last, or those with the best scores."""
    if by == "last":
        return list(found[-count:])
    sign = 1 if by == "lowest" else -1
    scored = [one for one in found if one.progress.score is not None]
    scored.sort(key=lambda one: (sign * (one.progress.score or 0.0), one.progress.step))
    return sorted(scored[:count], key=lambda one: one.progress.step) or list(found[-1:])


def publish(staging: Path, final: Path) -> None:
    """Flush every file of `staging`, then make it `final` in one rename, replacing an older one."""
    for path in sorted(staging.rglob("*")):
        flush(path)
    flush(staging)
    if final.exists():
        _discard(final)
    staging.rename(final)
    flush(final.parent)


def _discard(folder: Path) -> None:
    hidden = folder.with_name(f"{_HIDDEN}old-{folder.name}")
    if hidden.exists():
        shutil.rmtree(hidden)
    folder.rename(hidden)
    shutil.rmtree(hidden)


def _read_progress(folder: Path) -> Progress:
    try:
        return Progress(**json.loads((folder / _PROGRESS).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(
            f"{folder}: its {_PROGRESS} cannot be read ({error}); delete the folder to resume from "
            "the checkpoint before it"
        ) from None
