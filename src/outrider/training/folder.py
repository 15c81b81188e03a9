"""The folder of a run, and whether what lies in it may be continued.

run.yaml        the resolved config          checkpoints/    to resume from and to average
state.json      what it was started with     model/          the finished model
log.jsonl       one line per log step        curve.png       the learning curve
results.json    scores on the test set       tensorboard/    events, if asked for
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.config import as_yaml
from outrider.data.durable import lock
from outrider.errors import ConfigError
from outrider.evaluation.results import checksum
from outrider.runtime.distill import weights_of
from outrider.training.build import target_folder
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

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from training in this folder while the block runs."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            if not lock(file):
                message = f"another process is training in {self.path}; wait for it or stop it"
                raise ConfigError("folder", message)
            yield

    def is_finished(self, config: RunConfig) -> bool:
        """Whether the model of exactly this config is there, and its scores if it asks for any."""
        written = self.written(config) / "run.yaml"
        if not written.exists() or written.read_text(encoding="utf-8") != as_yaml(config):
            return False
        return config.evaluate is None or self.results.exists()

    def written(self, config: RunConfig) -> Path:
        """Where the files about this run lie: with a drafter, its target keeps its own."""
        return self.model / config.model.type if config.model.rides else self.model

    def clear(self) -> None:
        """Forget everything this run wrote, and nothing else that may lie here."""
        for folder in (self.checkpoints.folder, self.model, self.tensorboard):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.log.path, self.curve, self.results, self._state, self.path / "run.yaml"):
            file.unlink(missing_ok=True)

    def open(self, config: RunConfig, *, prepared: Path, processes: int) -> Checkpoint | None:
        """Get ready to train: return the checkpoint to resume from, or None to start."""
        self.checkpoints.clean()
        resume = self.checkpoints.latest()
        state = _state(config, prepared, processes)
        if resume:
            self._check_unchanged(state)
        self.log.rewind(resume.progress.step if resume else 0)
        _write_whole(self._state, json.dumps(state, indent=2) + "\n")
        _write_whole(self.path / "run.yaml", as_yaml(config))
        return resume

    @property
    def _state(self) -> Path:
        return self.path / "state.json"

    def _read_state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            message = f"{self._state} cannot be read, so nothing here can be resumed; use --restart"
            raise ConfigError("folder", message) from None
        return state

    def _check_unchanged(self, state: dict[str, Any]) -> None:
        before = self._read_state()
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
        if before.get("target") != state.get("target"):
            raise ConfigError(
                "model.target", f"has other weights than when {self.path} was started; {remedy}"
            )
        if before["data"] != state["data"]:
            raise ConfigError(
                "data.folder", f"was prepared anew since {self.path} was started; {remedy}"
            )


def _write_whole(path: Path, text: str) -> None:
    staging = path.with_name(f".unfinished-{path.name}")
    staging.write_text(text, encoding="utf-8")
    staging.replace(path)


def _state(config: RunConfig, prepared: Path, processes: int) -> dict[str, Any]:
    state = {
        "config": config.model_dump(mode="json"),
        "processes": processes,
        "data": checksum(prepared / "manifest.json"),
    }
    if config.model.rides:
        state["target"] = weights_of(target_folder(config))
    return state
