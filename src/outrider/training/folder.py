"""The folder of a run, and whether what lies in it may be continued.

run.yaml        the resolved config          checkpoints/    to resume from and to average
state.json      what it was started with     model/          the finished model
log.jsonl       one line per log step        curve.png       the learning curve
results.json    scores on the test set       tensorboard/    events, if asked for
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.config import as_yaml
from outrider.errors import ConfigError
from outrider.evaluation.results import checksum
from outrider.training.checkpoint import Checkpoint, Checkpoints
from outrider.training.log import Log
from outrider.training.run_config import RunConfig, changed_key

__all__ = ["RunFolder"]


@dataclass(frozen=True)
class RunFolder:
    """Names every file of a run."""

    path: Path

    @property
    def checkpoints(self) -> Checkpoints:
        """Where the run can be resumed from."""
        return Checkpoints(self.path / "checkpoints")

    @property
    def log(self) -> Log:
        """What happened so far."""
        return Log(self.path / "log.jsonl")

    @property
    def model(self) -> Path:
        """The finished model."""
        return self.path / "model"

    @property
    def curve(self) -> Path:
        """The learning curve."""
        return self.path / "curve.png"

    @property
    def results(self) -> Path:
        """Scores on the test set."""
        return self.path / "results.json"

    @property
    def tensorboard(self) -> Path:
        """Events, if asked for."""
        return self.path / "tensorboard"

    def clear(self) -> None:
        """Forget everything this run wrote, and nothing else that may lie here."""
        for folder in (self.checkpoints.folder, self.model, self.tensorboard):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.log.path, self.curve, self.results, self._state, self.path / "run.yaml"):
            file.unlink(missing_ok=True)

    def open(self, config: RunConfig, *, prepared: Path, processes: int) -> Checkpoint | None:
        """Get ready to train: return the checkpoint to resume from, or None to start."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.checkpoints.clean()
        resume = self.checkpoints.latest()
        state = _state(config, prepared, processes)
        if resume:
            self._check_unchanged(state)
        self.log.rewind(resume.progress.step if resume else 0)
        self._state.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        (self.path / "run.yaml").write_text(as_yaml(config), encoding="utf-8")
        return resume

    @property
    def _state(self) -> Path:
        return self.path / "state.json"

    def _check_unchanged(self, state: dict[str, Any]) -> None:
        before = json.loads(self._state.read_text(encoding="utf-8"))
        remedy = "change it back, choose another folder, or pass --restart to start over"
        if before["processes"] != state["processes"]:
            raise ConfigError(
                "processes",
                f"{self.path} was trained on {before['processes']} process(es), not "
                f"{state['processes']}, which would change its batches; {remedy}",
            )
        key = changed_key(before["config"], state["config"])
        if key is not None:
            raise ConfigError(
                key, f"differs from the run in {self.path} that this resumes; {remedy}"
            )
        if before["data"] != state["data"]:
            raise ConfigError(
                "data.folder", f"was prepared anew since {self.path} was started; {remedy}"
            )


def _state(config: RunConfig, prepared: Path, processes: int) -> dict[str, Any]:
    return {
        "config": config.model_dump(mode="json"),
        "processes": processes,
        "data": checksum(prepared / "manifest.json"),
    }
