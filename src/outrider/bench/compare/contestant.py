"""One model of a comparison with one seed: an ordinary run, its peak memory, its scores.

The run lies in a folder of its own and resumes like any other. What was found is written beside it
as `comparison.json`, and a run that has one is not repeated.

With a budget of minutes the run is trained to a number of updates that grows until the time is used
up; a schedule that does not look ahead to the end makes that the same as one run.
"""

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from outrider.bench.memory import peak_bytes
from outrider.data.tasks import build_task
from outrider.errors import ConfigError
from outrider.evaluation.results import write_result
from outrider.evaluation.task_score import score_task
from outrider.models import load_model
from outrider.training.folder import RunFolder
from outrider.training.log import read_log
from outrider.training.run import train_run
from outrider.training.run_config import RunConfig

__all__ = ["Contestant", "check_schedule", "finished", "run_contestant"]

FORESIGHTED = ("linear", "cosine")
"""Schedules that need to know the last update when the first one is made."""


@dataclass(frozen=True)
class Contestant:
    """What a process is to train and test."""

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
        """Where the result is written."""
        return Path(self.config.folder) / "comparison.json"

    def describe(self) -> dict[str, Any]:
        """Return what a result must have been made with to be taken as it is."""
        config = self.config.model_dump(
            mode="json", exclude={"folder": True, "data": {"folder": True, "root": True}}
        )
        return {"config": config, "minutes": self.minutes, "task": [self.task, self.settings]}


def check_schedule(config: RunConfig, name: str) -> None:
    """Refuse what must know its last update when only the minutes are known."""
    train = config.train
    if train.schedule in FORESIGHTED:
        found, fix = f"train.schedule {train.schedule}", "train.schedule=inverse_sqrt"
    elif train.intermediate_loss:
        found, fix = "train.intermediate_loss", "train.intermediate_loss=false"
    else:
        return
    raise ConfigError(
        "--minutes",
        f"{name} has {found}, which must know its last update; add --set {fix}, or give --steps",
    )


def finished(contestant: Contestant) -> dict[str, Any] | None:
    """Return the result of an earlier comparison with the same settings."""
    found = _read(contestant)
    return found if "scores" in found else None


def run_contestant(contestant: Contestant, console: Console) -> dict[str, Any]:
    """Train, measure and score; what an interrupted start has trained is not trained again."""
    if contestant.threads is not None:
        torch.set_num_threads(contestant.threads)
    earlier = _read(contestant)
    before, began = _peak_bytes(), time.process_time()
    checkpoints = RunFolder(Path(contestant.config.folder)).checkpoints
    found = checkpoints.latest()
    model = _train(contestant, console)
    unknown = found is not None or torch.cuda.is_available()  # the processor then did only a part
    spent = None if unknown else time.process_time() - began
    trained = checkpoints.latest() != found
    peak = _peak_bytes() - before if trained else None
    result = {
        "made_with": contestant.describe(),
        "seed": contestant.config.seed,
        "peak_bytes": earlier.get("peak_bytes", peak),
        "cpu_seconds": earlier.get("cpu_seconds", spent),
        **_facts(contestant, model),
    }
    write_result(contestant.outcome, result)
    console.print(f"testing {contestant.name}", highlight=False)
    task = build_task(contestant.task, contestant.settings, data=contestant.data)
    result["scores"] = score_task(task, contestant.task_folder, model)
    write_result(contestant.outcome, result)
    return result


def _read(contestant: Contestant) -> dict[str, Any]:
    """Return what was found so far with these very settings; nothing if there is none."""
    try:
        found: dict[str, Any] = json.loads(contestant.outcome.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if found.get("made_with") == contestant.describe() else {}


def _train(contestant: Contestant, console: Console) -> Path:
    config = contestant.config
    if contestant.minutes is None:
        return train_run(config, console=console)
    checkpoints = RunFolder(Path(config.folder)).checkpoints
    every, limit = config.train.save_every, 60 * contestant.minutes
    latest = checkpoints.latest()
    steps = latest.progress.step if latest else every
    while True:
        train = config.train.model_copy(update={"steps": steps})
        model = train_run(config.model_copy(update={"train": train}), console=console)
        latest = checkpoints.latest()
        assert latest is not None
        seconds = latest.progress.seconds
        if seconds >= limit:
            return model
        further = int((limit - seconds) * latest.progress.step / seconds)
        steps = latest.progress.step + max(1, further // every) * every


def _facts(contestant: Contestant, model: Path) -> dict[str, Any]:
    """Read what the run says of itself, and count its weights."""
    provenance = json.loads((model / "provenance.json").read_text(encoding="utf-8"))
    records = read_log(RunFolder(Path(contestant.config.folder)).log.path)
    updates = [record for record in records if record["event"] == "update"]
    evaluations = [record for record in records if record["event"] == "evaluation"]
    seconds = {record["step"]: record["seconds"] for record in updates}
    return {
        "parameters": sum(weight.numel() for weight in load_model(model).parameters()),
        "steps": provenance["training"]["steps"],
        "tokens": provenance["training"]["tokens"],
        "seconds": provenance["training"]["seconds"],
        "tokens_per_second": statistics.median(one["tokens_per_second"] for one in updates),
        "training_loss": updates[-1]["loss"],
        "curve": [
            {"step": one["step"], "seconds": seconds.get(one["step"]), "loss": one["loss"]}
            for one in evaluations
        ],
    }


def _peak_bytes() -> int:
    """The most memory held so far: of the device if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return peak_bytes()
