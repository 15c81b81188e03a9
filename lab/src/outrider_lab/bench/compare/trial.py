"""One trial of a comparison, a model with a seed: an ordinary run, its peak memory, its scores.

The run has its own folder and can be resumed. Its result is written beside it as `comparison.json`,
and a run that has one is not repeated.

With a budget of minutes the number of updates is increased until the time is used up; with a
schedule that does not depend on the last update this is identical to one run.
"""

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from outrider.errors import ConfigError
from outrider.run_config import RunConfig
from outrider.runtime.memory import peak_bytes
from outrider.runtime.provenance import write_result
from outrider.torch.models import load_model
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.log import read_log
from outrider.torch.training.run import train_run
from outrider_lab.task_score import score_task
from outrider_lab.tasks import build_task

NEED_LAST_STEP = ("linear", "cosine")
"""Schedules that depend on the number of the last update."""


@dataclass(frozen=True)
class Trial:
    """One model with one seed."""

    name: str
    config: RunConfig
    task: str
    settings: dict[str, Any]
    data: Path | None
    task_folder: Path
    minutes: float | None = None
    threads: int | None = None

    @property
    def outcome(self) -> Path:
        """The file of the result."""
        return Path(self.config.folder) / "comparison.json"

    def build_spec(self) -> dict[str, Any]:
        """Return the settings that an earlier result must have to be reused."""
        config = self.config.model_dump(
            mode="json", exclude={"folder": True, "data": {"folder": True, "root": True}}
        )
        return {"config": config, "minutes": self.minutes, "task": [self.task, self.settings]}


def check_schedule(config: RunConfig, name: str) -> None:
    """Refuse a schedule that depends on the last update if the budget is in minutes."""
    train = config.train
    if train.schedule in NEED_LAST_STEP:
        setting, fix = f"train.schedule {train.schedule}", "train.schedule=inverse_sqrt"
    elif train.intermediate_loss:
        setting, fix = "train.intermediate_loss", "train.intermediate_loss=false"
    else:
        return
    raise ConfigError(
        "--minutes",
        f"{name} has {setting}, which depends on the last update; add --set {fix}, or give --steps",
    )


def finished_result(trial: Trial) -> dict[str, Any] | None:
    """Return the result of an earlier comparison with the same settings."""
    result = _read(trial)
    return result if "scores" in result else None


def run_trial(trial: Trial, console: Console) -> dict[str, Any]:
    """Train, measure and score; an interrupted run is resumed."""
    if trial.threads is not None:
        torch.set_num_threads(trial.threads)
    earlier = _read(trial)
    before, start = _peak_bytes(), time.process_time()
    checkpoints = RunFolder(Path(trial.config.folder)).checkpoints
    resumed = checkpoints.latest()
    model = _train(trial, console)
    unknown = resumed is not None or torch.cuda.is_available()  # CPU time is incomplete
    cpu_seconds = None if unknown else time.process_time() - start
    trained = checkpoints.latest() != resumed
    peak = _peak_bytes() - before if trained else None
    result = {
        "made_with": trial.build_spec(),
        "seed": trial.config.seed,
        "peak_bytes": earlier.get("peak_bytes", peak),
        "cpu_seconds": earlier.get("cpu_seconds", cpu_seconds),
        **_facts(trial, model),
    }
    write_result(trial.outcome, result)
    console.print(f"testing {trial.name}", highlight=False)
    task = build_task(trial.task, trial.settings, data=trial.data)
    result["scores"] = score_task(task, trial.task_folder, model)
    write_result(trial.outcome, result)
    return result


def _read(trial: Trial) -> dict[str, Any]:
    """Return the result so far if it has the same settings, else an empty one."""
    try:
        result: dict[str, Any] = json.loads(trial.outcome.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return result if result.get("made_with") == trial.build_spec() else {}


def _train(trial: Trial, console: Console) -> Path:
    config = trial.config
    if trial.minutes is None:
        return train_run(config, console=console)
    checkpoints = RunFolder(Path(config.folder)).checkpoints
    interval, limit = config.train.save_every, 60 * trial.minutes
    latest = checkpoints.latest()
    steps = latest.progress.step if latest else interval
    while True:
        train = config.train.model_copy(update={"steps": steps})
        model = train_run(config.model_copy(update={"train": train}), console=console)
        latest = checkpoints.latest()
        assert latest is not None
        seconds = latest.progress.seconds
        if seconds >= limit:
            return model
        further = int((limit - seconds) * latest.progress.step / seconds)
        steps = latest.progress.step + max(1, further // interval) * interval


def _facts(trial: Trial, model: Path) -> dict[str, Any]:
    """Read the run's provenance and log, and count its parameters."""
    provenance = json.loads((model / "provenance.json").read_text(encoding="utf-8"))
    records = read_log(RunFolder(Path(trial.config.folder)).log.path)
    updates = [record for record in records if record["event"] == "update"]
    evaluations = [record for record in records if record["event"] == "evaluation"]
    seconds = {record["step"]: record["seconds"] for record in updates}
    return {
        "parameters": sum(weight.numel() for weight in load_model(model).parameters()),
        "steps": provenance["training"]["steps"],
        "tokens": provenance["training"]["tokens"],
        "seconds": provenance["training"]["seconds"],
        "tokens_per_second": statistics.median(update["tokens_per_second"] for update in updates),
        "training_loss": updates[-1]["loss"],
        "curve": [
            {"step": e["step"], "seconds": seconds.get(e["step"]), "loss": e["loss"]}
            for e in evaluations
        ],
    }


def _peak_bytes() -> int:
    """Return the peak memory of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return peak_bytes()
