"""Atomic checkpoints of a run.

A checkpoint is written under a hidden name, flushed to disk and renamed: a folder called `step-...`
is complete. The next start removes what a killed process left behind. A checkpoint that is too old
to resume from keeps only its weights, and only while averaging needs them.

`progress.json` holds the checksum of every other file, and its own. A damaged checkpoint is renamed
to `damaged-step-...`, and the run resumes from the one before it.

Checkpoints are committed in the background: checksums, flushing and renaming run in a thread while
training goes on. One checkpoint is pending at a time; its error is raised when the next one is
written, or at the end of the run.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from outrider.errors import ModelError
from outrider.files import explained, file_sha256, publish, read_json, write_json
from outrider.run_config import TrainConfig

_NAME = "step-{:08d}"
_HIDDEN = ".unfinished-"
_PROGRESS = "progress.json"
_OPTIMIZER = "optimizer.pt"
SHARES = "optimizer"
"""Folder of a sharded optimizer, in place of the file."""
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Progress:
    """The state of a run besides weights and optimizer."""

    step: int = 0
    cursor: dict[str, Any] = field(default_factory=dict)
    """Position of the next batch."""
    tokens: int = 0
    """Target tokens trained on so far."""
    seconds: float = 0.0
    """Wall time spent so far, over all starts."""
    score: float | None = None
    """The stop metric at this step, if it was evaluated."""
    best: float | None = None
    """The best stop metric so far."""
    stale: int = 0
    """Evaluations since the best one."""
    stopped: bool = False
    """True once early stopping has ended the run."""

    def after_evaluation(self, score: float, *, lower_is_better: bool, patience: int) -> "Progress":
        """Return the progress after an evaluation with `score`."""
        sign = -1 if lower_is_better else 1
        if self.best is None or sign * score > sign * self.best:
            return replace(self, score=score, best=score, stale=0)
        stale = self.stale + 1
        return replace(self, score=score, stale=stale, stopped=0 < patience <= stale)


_TYPES = TypeAdapter(Progress)


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint on disk."""

    folder: Path
    progress: Progress
    files: Mapping[str, str] | None = None
    """Checksums of its files; None if an old version wrote it without."""

    @property
    def resumable(self) -> bool:
        """Whether it has an optimizer, or only weights."""
        if self.files is None:
            return (self.folder / _OPTIMIZER).exists()
        return any(map(_is_optimizer, self.files))

    def fault(self, *names: str) -> str:
        """Describe the first missing or changed file, of all or of `names`; "" if there is none."""
        for name, checksum in (self.files or {}).items():
            path = self.folder / name
            if names and name not in names:
                continue
            if not path.is_file():
                return f"{name} is missing"
            if file_sha256(path) != checksum:
                return f"{name} changed since it was written"
        return ""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, state: Path | None = None) -> None:
        """Use the checkpoints in `folder`; each gets a copy of the file `state`."""
        self.folder, self.state = folder, state

    def all(self) -> list[Checkpoint]:
        """Return every complete checkpoint, oldest first."""
        return [_read(folder) for folder in self._folders()]

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint a run can resume from."""
        return next((c for c in reversed(self.all()) if c.resumable), None)

    def clean(self) -> None:
        """Remove what a killed process wrote or deleted halfway."""
        with explained(self.folder):
            for old in self.folder.glob(f"{_HIDDEN}{_NAME.format(0)[:-8]}*-old"):
                name = old.name.removeprefix(_HIDDEN).removesuffix("-old")
                if not (self.folder / name).exists():  # killed between the two renames of `publish`
                    old.rename(self.folder / name)
            for leftover in self.folder.glob(f"{_HIDDEN}*"):
                shutil.rmtree(leftover)

    def set_aside_damaged(self) -> list[str]:
        """Rename every damaged checkpoint and return a message about each.

        Raises an error and renames nothing if no other checkpoint can be resumed from.
        """
        faults = {folder: fault for folder in self._folders() if (fault := _fault(folder))}
        sound = [_read(folder) for folder in self._folders() if folder not in faults]
        if faults and not any(checkpoint.resumable for checkpoint in sound):
            folder, fault = list(faults.items())[-1]
            raise ModelError(
                f"{folder}: {fault}, and there is no other checkpoint to resume from; put back a "
                "copy of it, choose another folder, or pass --restart to start over"
            )
        return [self._set_aside(folder, fault) for folder, fault in faults.items()]

    def choose(
        self, count: int, by: Literal["last", "lowest", "highest"]
    ) -> tuple[list[Checkpoint], list[str]]:
        """Choose the undamaged checkpoints to average.

        Also returns a message about each damaged one, which is renamed.
        """
        checkpoints = self.all()
        faults = {c.folder: fault for c in checkpoints if (fault := c.fault(_WEIGHTS))}
        sound = [c for c in checkpoints if c.folder not in faults]
        if not sound:
            message = "; ".join(f"{folder}: {fault}" for folder, fault in faults.items())
            raise ModelError(message or f"{self.folder}: holds no checkpoint to average")
        notes = [self._set_aside(folder, fault) for folder, fault in faults.items()]
        return select(sound, count, by), notes

    def stage(self, step: int) -> Path:
        """Return a folder to write into; `commit` makes it a checkpoint."""
        staging = self.folder / (_HIDDEN + _NAME.format(step))
        with explained(staging):
            staging.mkdir(parents=True, exist_ok=True)
        return staging

    def commit(self, staging: Path, progress: Progress) -> Checkpoint:
        """Checksum a staged checkpoint, flush it to disk and rename it."""
        if self.state is not None:
            shutil.copyfile(self.state, staging / self.state.name)
        written = sorted(path for path in staging.rglob("*") if path.is_file())
        files = {path.relative_to(staging).as_posix(): file_sha256(path) for path in written}
        _write_progress(staging, progress, files)
        final = self.folder / _NAME.format(progress.step)
        publish(staging, final)
        return Checkpoint(final, progress, files)

    def prune(self, *, keep: int, average: int, by: Literal["last", "lowest", "highest"]) -> None:
        """Keep `keep` checkpoints to resume from, and the weights of those that get averaged."""
        checkpoints = self.all()
        averaged = {checkpoint.folder for checkpoint in select(checkpoints, average, by)}
        for old in checkpoints[:-keep]:
            if old.folder not in averaged:
                _discard(old.folder)
            elif old.resumable:
                if old.files is not None:
                    left = {n: sum_ for n, sum_ in old.files.items() if not _is_optimizer(n)}
                    _write_progress(old.folder, old.progress, left)
                (old.folder / _OPTIMIZER).unlink(missing_ok=True)
                shutil.rmtree(old.folder / SHARES, ignore_errors=True)

    def _folders(self) -> list[Path]:
        return sorted(self.folder.glob(_NAME.format(0)[:-8] + "*"))

    def _set_aside(self, folder: Path, fault: str) -> str:
        aside = folder.with_name(f"damaged-{folder.name}")
        with explained(folder):
            if aside.exists():
                shutil.rmtree(aside)
            folder.rename(aside)
        return f"{folder}: {fault}; it is not used, and kept as {aside.name}"


def select(
    checkpoints: Sequence[Checkpoint], count: int, by: Literal["last", "lowest", "highest"]
) -> list[Checkpoint]:
    """Choose the `count` checkpoints to average: the last, or those with the best scores."""
    if by == "last":
        return list(checkpoints[-count:])
    sign = 1 if by == "lowest" else -1
    scored = [c for c in checkpoints if c.progress.score is not None]
    scored.sort(key=lambda c: (sign * (c.progress.score or 0.0), c.progress.step))
    return sorted(scored[:count], key=lambda c: c.progress.step) or list(checkpoints[-1:])


def _is_optimizer(name: str) -> bool:
    return name == _OPTIMIZER or name.startswith(f"{SHARES}/")


def _discard(folder: Path) -> None:
    hidden = folder.with_name(f"{_HIDDEN}old-{folder.name}")
    with explained(folder):
        if hidden.exists():
            shutil.rmtree(hidden)
        folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)  # or at the next start


def _fault(folder: Path) -> str:
    try:
        return _read(folder).fault()
    except ModelError as error:
        return str(error).removeprefix(f"{folder / _PROGRESS}: ")


def _read(folder: Path) -> Checkpoint:
    path = folder / _PROGRESS
    values = read_json(path, fix="delete the folder to resume from the checkpoint before it")
    files, checksum = values.pop("files", None), values.pop("sha256", None)
    if files is not None and checksum != _checksum(values, files):
        raise ModelError(f"{path}: {_PROGRESS} changed since it was written")
    try:
        progress = _TYPES.validate_python(asdict(Progress(**values)))
        return Checkpoint(folder, progress, files)
    except (TypeError, ValidationError) as error:
        raise ModelError(f"{path}: was written by another version ({error})") from error


def _write_progress(folder: Path, progress: Progress, files: Mapping[str, str]) -> None:
    values = asdict(progress)
    sums = {"files": files, "sha256": _checksum(values, files)}
    write_json(folder / _PROGRESS, {**values, **sums})


def _checksum(values: Mapping[str, Any], files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps([values, files], sort_keys=True).encode()).hexdigest()


KEPT = "the checkpoints before it are kept"
"""Added to the error when a checkpoint cannot be written."""


class Commits:
    """Commits staged checkpoints of one run in a thread, and removes old ones."""

    def __init__(self, checkpoints: Checkpoints, config: TrainConfig) -> None:
        self.checkpoints, self.config = checkpoints, config
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def begin(self, staging: Path, progress: Progress) -> None:
        """Start committing a checkpoint, after the previous one."""
        self.wait()
        self._pending = self._thread.submit(self._commit, staging, progress)

    def wait(self) -> None:
        """Wait for the pending commit and raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _commit(self, staging: Path, progress: Progress) -> None:
        with explained(staging, KEPT):
            self.checkpoints.commit(staging, progress)
            self.checkpoints.prune(
                keep=self.config.keep, average=self.config.average, by=self.config.averaged_by
            )
