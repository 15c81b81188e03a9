"""The folder of a run, and whether what lies in it may be continued.

run.yaml        the resolved config          checkpoints/    to resume from and to average
state.json      what it was started with     model/          the finished model
log.jsonl       one line per log step        curve.png       the learning curve
results.json    scores on the test set       tensorboard/    events, if asked for
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
from outrider.torch.training.build import target_folder
from outrider.torch.training.checkpoint import Checkpoint, Checkpoints
from outrider.torch.training.log import Log
from outrider.torch.training.start import start_folder

__all__ = ["RunFolder"]

_STATE = {"config", "processes", "data"}
"""Keys of `state.json` without which nothing can be resumed."""


@dataclass(frozen=True)
class RunFolder:
    """Names every file of a run."""

    path: Path

    @property
    def checkpoints(self) -> Checkpoints:
        """Where the run can be resumed from."""
        return Checkpoints(self.path / "checkpoints", state=self._state)

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
        message = f"another process is training in {self.path}; wait for it or stop it"
        with locked(self.path / ".lock", ConfigError("folder", message)):
            yield

    def is_finished(self, config: RunConfig) -> bool:
        """Whether the model of exactly this config is there, and its scores if it asks for any."""
        written = self.written(config) / "run.yaml"
        if not written.exists() or written.read_text(encoding="utf-8") != as_yaml(config):
            return False
        return config.evaluate is None or self.results.exists()

    def written(self, config: RunConfig) -> Path:
        """Where the files about this run lie: with a drafter, its target keeps its own."""
        return self.model / config.model.type if config.model.has_target else self.model

    def clear(self) -> None:
        """Forget everything this run wrote, and nothing else that may lie here."""
        for folder in (self.checkpoints.folder, self.model, self.tensorboard):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.log.path, self.curve, self.results, self._state, self.path / "run.yaml"):
            file.unlink(missing_ok=True)

    def open(
        self, config: RunConfig, *, prepared: Path, processes: int, bleu_tokenizer: str | None
    ) -> tuple[Checkpoint | None, list[str]]:
        """Get ready to train: return the checkpoint to resume from, or None to start.

        Also returns what people should know about checkpoints that are damaged.
        """
        self.checkpoints.clean()
        remove_leftovers(self.model)
        # What is trained already reads its checkpoints no more.
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
        """How many processes the batches of this run were planned for, when it was started."""
        return int(read_json(self._state)["processes"])

    @property
    def chosen(self) -> dict[str, Any]:
        """What each `auto` of the config came to; a resumed run keeps it."""
        chosen: dict[str, Any] = read_json(self._state)["chosen"]
        return chosen

    def choose(self, **chosen: str) -> None:
        """Record what an `auto` came to."""
        state = read_json(self._state)
        write_json(self._state, {**state, "chosen": {**state["chosen"], **chosen}})

    @property
    def _state(self) -> Path:
        return self.path / "state.json"

    def _read_state(self, resume: Checkpoint) -> dict[str, Any]:
        """Read what the run was started with; each checkpoint holds a copy."""
        fix = f"put back a copy of it, or choose another folder: {self.path} cannot be resumed"
        try:
            state = read_json(self._state, fix=fix)
        except ModelError:
            state = {}
        if not state.keys() >= _STATE:
            state = read_json(resume.folder / self._state.name, fix=fix)
        return state

    def _keep_processes(self, before: dict[str, Any], state: dict[str, Any]) -> list[str]:
        """Keep the plan of the first start, if it can be dealt to as many processes as now."""
        planned, now = before["processes"], state["processes"]
        if planned == now:
            return []
        parts = planned * before["config"]["train"]["accumulate"]
        if parts % now:
            able = ", ".join(str(n) for n in range(1, parts + 1) if parts % n == 0)
            raise ConfigError(
                "processes",
                f"{self.path} was begun on {planned} process(es), so an update has {parts} parts, "
                f"which {now} cannot share equally; start as many as {able}, or --restart",
            )
        state["processes"] = planned
        return [
            f"begun on {planned} process(es), going on with {now}: the same batches in the same "
            "order, but not to the bit"
        ]

    def _check_unchanged(self, before: dict[str, Any], state: dict[str, Any]) -> None:
        remedy = "change it back, choose another folder, or pass --restart to start over"
        key = changed_key(_settled(before), _settled(state))
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
                "data.folder", f"was prepared anew since {self.path} was started; {remedy}"
            )


def _keep_chosen(before: dict[str, Any], state: dict[str, Any]) -> None:
    """Go on with what `auto` came to before, whatever it would come to today."""
    train = before["config"]["train"]
    chosen = before.setdefault("chosen", {"precision": train["precision"]})
    asked = {
        "precision": state["config"]["train"]["precision"],
        "bleu_tokenizer": (state["config"]["evaluate"] or {"tokenize": "auto"})["tokenize"],
    }
    for name, value in asked.items():
        if value in ("auto", None):
            state["chosen"][name] = chosen.get(name) or state["chosen"][name]


def _settled(state: dict[str, Any]) -> dict[str, Any]:
    """The config of a run, with the precision that `auto` came to."""
    config: dict[str, Any] = state["config"]
    precision = state["chosen"]["precision"]
    return {**config, "train": {**config["train"], "precision": precision}}


def _state(config: RunConfig, prepared: Path, processes: int) -> dict[str, Any]:
    state = {
        "config": config.model_dump(mode="json"),
        "processes": processes,
        "data": file_sha256(prepared / "manifest.json"),
    }
    if config.model.has_target:
        state["target"] = weights_of(target_folder(config))
    if config.model.start is not None:
        state["start"] = weights_of(start_folder(config))
    return state
