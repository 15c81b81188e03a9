"""Checkpoints are made to count while training goes on.

A checkpoint is written into the memory that the system keeps for files, which is quick. Checksums,
the wait for the disk and the renaming are left to a thread, so that no update waits for a disk.
There is one checkpoint on its way at a time; what goes wrong with it is raised when the next is
written, or at the end of the run.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from outrider.files import explained
from outrider.torch.training.checkpoint import Checkpoints, Progress
from outrider.train_config import TrainConfig

__all__ = ["KEPT", "Commits"]

KEPT = "the checkpoints before it are kept"
"""What to say where one cannot be written."""


class Commits:
    """Commits staged checkpoints of one run, and removes those that are too old."""

    def __init__(self, checkpoints: Checkpoints, config: TrainConfig) -> None:
        self.checkpoints, self.config = checkpoints, config
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def begin(self, staging: Path, progress: Progress) -> None:
        """Let a checkpoint count as soon as it is on the disk."""
        self.wait()
        self._pending = self._thread.submit(self._commit, staging, progress)

    def wait(self) -> None:
        """Return when nothing is on its way; raise what went wrong, once."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _commit(self, staging: Path, progress: Progress) -> None:
        with explained(staging, KEPT):
            self.checkpoints.commit(staging, progress)
            self.checkpoints.prune(
                keep=self.config.keep, average=self.config.average, by=self.config.averaged_by
            )
