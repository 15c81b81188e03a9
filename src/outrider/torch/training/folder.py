"""The folder of a run, and whether the run in it can be resumed.

run.yaml        the resolved config          checkpoints/    to resume from and to average
state.json      config and data at start     model/          the finished model
log.jsonl       one line per log step        curve.png       the learning curve
results.json    scores on the test set       tensorboard/    events, if `train.tensorboard` is set
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.config import as_yaml, completed
from outrider.errors import ConfigError, ModelError
from outrider.files import (
    file_sha256,
    locked,
    read_json,
    remove_leftovers,
    write_json,
    write_text,
)
from outrider.formats.folder import weights_of
from outrider.run_config import RunConfig, changed_key
from outrider.torch.training.checkpoint import Checkpoint, Checkpoints
from outrider.torch.training.log import Log
from outrider.torch.training.start import origins

_STATE = {"config", "processes", "data"}
"""Keys that `state.json` needs for a resume."""


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    path: Path

    @property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints to resume from."""
        return Checkpoints(self.path / "checkpoints", state=self._state)

    @property
    def log(self) -> Log:
        """The JSONL log."""
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
        """TensorBoard events."""
        return self.path / "tensorboard"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent a second process from training in this folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        message = f"another process is training in {self.path}; wait for it or stop it"
        with locked(self.path / ".lock", ConfigError("folder", message)):
            yield

    def is_finished(self, config: RunConfig) -> bool:
        """Whether it holds a model of exactly this config, with scores if the config evaluates."""
        path = self.metadata(config) / "run.yaml"
        if not path.exists() or path.read_text(encoding="utf-8") != as_yaml(config):
            return False
        return config.evaluate is None or self.results.exists()

    def metadata(self, config: RunConfig) -> Path:
        """Return the folder of the run's config and provenance; a drafter has its own subfolder."""
        return self.model / config.model.type if config.model.has_target else self.model

    def clear(self) -> None:
        """Delete the files of this run, and no others."""
        for folder in (self.checkpoints.folder, self.model, self.tensorboard):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.log.path, self.curve, self.results, self._state, self.path / "run.yaml"):
            file.unlink(missing_ok=True)

    def open(
        self, config: RunConfig, *, prepared: Path, processes: int, bleu_tokenizer: str | None
    ) -> tuple[Checkpoint | None, list[str]]:
        """Prepare the folder to train; return the checkpoint to resume from, or None to start.

        Also returns messages about damaged checkpoints.
        """
        self.checkpoints.clean()
        remove_leftovers(self.model)
        # A finished run does not read its checkpoints again.
        notes = [] if self.is_finished(config) else self.checkpoints.set_aside_damaged()
        resume = self.checkpoints.latest()
        state = _state(config, prepared, processes)
        state["chosen"] = {"precision": config.train.precision, "bleu_tokenizer": bleu_tokenizer}
        if resume:
            before = self._read_state(resume)
            before["config"] = completed(before["config"], config)
            _keep_chosen(before, state)
            notes += self._keep_processes(before, state)
            self._check_unchanged(before, state)
        self.log.rewind(resume.progress.step if resume else -1)
        write_json(self._state, state)
        write_text(self.path / "run.yaml", as_yaml(config))
        return resume, notes

    @property
    def processes(self) -> int:
        """The number of processes the batches of this run were planned for."""
        return int(read_json(self._state)["processes"])

    @property
    def chosen(self) -> dict[str, Any]:
        """The values chosen for `auto`; a resumed run keeps them."""
        chosen: dict[str, Any] = read_json(self._state)["chosen"]
        return chosen

    def choose(self, **chosen: str) -> None:
        """Record the value chosen for `auto`."""
        state = read_json(self._state)
        write_json(self._state, {**state, "chosen": {**state["chosen"], **chosen}})

    @property
    def _state(self) -> Path:
        return self.path / "state.json"

    def _read_state(self, resume: Checkpoint) -> dict[str, Any]:
        """Read the state at the start of the run; each checkpoint has a copy."""
        fix = f"put back a copy of it, or choose another folder: {self.path} cannot be resumed"
        try:
            state = read_json(self._state, fix=fix)
        except ModelError:
            state = {}
        if not state.keys() >= _STATE:
            state = read_json(resume.folder / self._state.name, fix=fix)
        return state

    def _keep_processes(self, before: dict[str, Any], state: dict[str, Any]) -> list[str]:
        """Keep the number of planned processes if the plan can be shared by the current number."""
        planned, now = before["processes"], state["processes"]
        if planned == now:
            return []
        parts = planned * before["config"]["train"]["accumulate"]
        if parts % now:
            divisors = ", ".join(str(n) for n in range(1, parts + 1) if parts % n == 0)
            raise ConfigError(
                "processes",
                f"{self.path} was started on {planned} process(es), so an update has {parts} "
                f"parts, which {now} cannot share equally; start {divisors}, or pass --restart",
            )
        state["processes"] = planned
        return [
            f"started on {planned} process(es), resuming on {now}: the same batches in the same "
            "order, but not bit-identical results"
        ]

    def _check_unchanged(self, before: dict[str, Any], state: dict[str, Any]) -> None:
        remedy = "change it back, choose another folder, or pass --restart to start over"
        key = changed_key(_resolved(before), _resolved(state))
        if key is not None:
            raise ConfigError(
                key, f"differs from the run in {self.path} that this resumes; {remedy}"
            )
        for name in ("target", "start"):
            if before.get(name) != state.get(name):
                message = f"has other weights than when {self.path} was started; {remedy}"
                raise ConfigError(f"model.{name}", message)
        if before["data"] != state["data"]:
            raise ConfigError(
                "data.folder", f"was prepared again since {self.path} was started; {remedy}"
            )


def _keep_chosen(before: dict[str, Any], state: dict[str, Any]) -> None:
    """Keep the values that `auto` had at the start of the run."""
    train = before["config"]["train"]
    chosen = before.setdefault("chosen", {"precision": train["precision"]})
    configured = {
        "precision": state["config"]["train"]["precision"],
        "bleu_tokenizer": (state["config"]["evaluate"] or {"tokenize": "auto"})["tokenize"],
    }
    for name, value in configured.items():
        if value in ("auto", None):
            state["chosen"][name] = chosen.get(name) or state["chosen"][name]


def _resolved(state: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a run with the precision chosen for `auto`."""
    config: dict[str, Any] = state["config"]
    precision = state["chosen"]["precision"]
    return {**config, "train": {**config["train"], "precision": precision}}


def _state(config: RunConfig, prepared: Path, processes: int) -> dict[str, Any]:
    return {
        "config": config.model_dump(mode="json"),
        "processes": processes,
        "data": file_sha256(prepared / "manifest.json"),
        **{key: weights_of(folder) for key, folder in origins(config).items()},
    }
