"""Train models with equal budgets on one task and compare them.

Every trial (a model with a seed) is trained in its own process, for its own peak memory and so that
a crash does not affect others. Everything is kept below one folder,

    FOLDER/TASK-DIGEST/task            the examples           DIGEST is that of the settings
                      /data-TYPE       prepared for a type    BUDGET is steps-500 or minutes-5
                      /BUDGET/MODEL/seed-1                    an ordinary run

so the same command resumes an interrupted comparison.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.config import load_config, read_yaml
from outrider.data.prepare import prepare
from outrider.errors import ConfigError, OutriderError
from outrider.run_config import RunConfig
from outrider.runtime.provenance import machine, versions
from outrider.torch.training.kinds import kind_of
from outrider_lab.bench.compare.summary import summarise
from outrider_lab.bench.compare.trial import Trial, check_schedule, finished_result, run_trial
from outrider_lab.bench.process import JobError, run_alone
from outrider_lab.tasks import SequenceTask, TaskBase, build_task

EVALUATIONS, LOGS = 10, 50
"""Points of a loss curve, and records of a log, if the number of updates is known."""
EVERY = 50
"""Updates between checkpoints if only the time is known."""


@dataclass(frozen=True)
class Budget:
    """The budget of every model: a number of updates, or of minutes."""

    steps: int | None = None
    minutes: float | None = None

    @property
    def label(self) -> str:
        """The name of its folder."""
        return f"steps-{self.steps}" if self.minutes is None else f"minutes-{self.minutes:g}"

    def overrides(self) -> list[str]:
        """Return overrides of a run config that set the budget and disable early stopping."""
        steps = self.steps or EVERY
        interval = -(-steps // EVALUATIONS) if self.minutes is None else EVERY
        logs = max(1, steps // LOGS) if self.minutes is None else EVERY // 5
        return [
            f"train.steps={steps}",
            f"train.save_every={interval}",
            f"train.evaluate_every={interval}",
            f"train.log_every={logs}",
            "train.patience=0",
            "train.stop_metric=loss",
        ]


@dataclass(frozen=True)
class Comparison:
    """What is compared, and where it is stored."""

    task: str
    budget: Budget
    settings: dict[str, Any]
    """Settings of the task."""
    overrides: tuple[str, ...] = ()
    """`key=value` for the run config of every model."""
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of keys; every config is trained with each combination."""
    data: Path | None = None
    seeds: int = 1
    folder: Path = Path("runs/compare")
    threads: int | None = None
    restart: bool = False
    own_process: bool = True
    """Train every model in its own process; otherwise peak memory is shared."""


def compare(
    configs: Sequence[Path], comparison: Comparison, *, console: Console | None = None
) -> dict[str, Any]:
    """Train and test every config with every seed; the result names models that fail."""
    console = console or Console(quiet=True)
    task = build_task(comparison.task, comparison.settings, data=comparison.data)
    folder = comparison.folder / f"{task.name}-{_digest(task)}"
    models = [
        _Model(path, dict(zip(comparison.vary, values, strict=True)))
        for path in _distinct(configs)
        for values in product(*comparison.vary.values())
    ]
    task.write(folder / "task")
    for model in models:
        model.prepare(task, comparison, folder, console)
    trials = [
        (model, model.trials[seed])
        for seed in range(comparison.seeds)
        for model in models
        if model.trials
    ]
    for number, (model, trial) in enumerate(trials, start=1):
        _print(console, f"{number} of {len(trials)}: {model.name}, seed {trial.config.seed}")
        model.run(trial, comparison, console)
    return {
        "task": _describe(task),
        "budget": {"steps": comparison.budget.steps, "minutes": comparison.budget.minutes},
        "seeds": comparison.seeds,
        "overrides": list(comparison.overrides),
        **({"vary": dict(comparison.vary)} if comparison.vary else {}),
        "models": [model.result(task) for model in models],
        "machine": machine(),
        "versions": versions(),
    }


class _Model:
    """One config with varied keys, its trials and results."""

    def __init__(self, path: Path, varied: Mapping[str, Any]) -> None:
        self.path, self.varied = path, varied
        shown = (
            f"{key.rpartition('.')[2]}={_as_folder_name(value)}" for key, value in varied.items()
        )
        self.name = " ".join([path.stem, *shown])
        self.type = str((read_yaml(path).get("model") or {}).get("type", "seq2seq"))
        self.status = "failed"
        self.messages: list[str] = []
        self.trials: list[Trial] = []
        self.runs: list[dict[str, Any]] = []

    def prepare(
        self, task: TaskBase, comparison: Comparison, place: Path, console: Console
    ) -> None:
        """Check the config and prepare its data, or record the error."""
        if self.type not in task.model_types:
            expected = " or ".join(task.model_types)
            self.status = "left out"
            self.messages.append(f"{task.name} is for a {expected}, not for a {self.type}")
            return
        try:
            trials = [
                self._trial(task, comparison, place, seed + 1) for seed in range(comparison.seeds)
            ]
            first = trials[0].config
            kind = kind_of(first)
            kind.check()
            prepare(first.data, task=kind.task, progress=console.is_terminal)
        except OutriderError as error:
            self._fail(str(error), console)
            return
        if comparison.budget.minutes is not None:
            check_schedule(first, self.name)
        self.trials = trials

    def run(self, trial: Trial, comparison: Comparison, console: Console) -> None:
        """Train and test one seed, unless that is done."""
        if comparison.restart:
            shutil.rmtree(trial.config.folder, ignore_errors=True)
        try:
            run = finished_result(trial)
            if run is not None:
                _print(console, f"{trial.config.folder} is done already")
            elif comparison.own_process:
                run = _train_in_process(trial, quiet=console.quiet)
            else:
                run = run_trial(trial, console)
        except _FAILURES as error:
            self._fail(f"seed {trial.config.seed}: {error}", console)
            return
        self.runs.append(run)
        self.status = "trained"

    def result(self, task: TaskBase) -> dict[str, Any]:
        """Return the model's part of the result."""
        result: dict[str, Any] = {
            "name": self.name,
            "config": self.path.name,
            "type": self.type,
            "status": self.status,
            "messages": self.messages,
        }
        if self.status != "trained":
            return result
        length = task.config.train_length if isinstance(task, SequenceTask) else None
        return result | {
            "parameters": self.runs[0]["parameters"],
            "summary": summarise(self.runs, trained_length=length),
            "settings": self.runs[0]["made_with"]["config"],
            "runs": [_without(run, "made_with", "date") for run in self.runs],
        }

    def _trial(self, task: TaskBase, comparison: Comparison, place: Path, seed: int) -> Trial:
        budget = comparison.budget
        folder = place / budget.label / self.name / f"seed-{seed}"
        section = task.section(place / "task", self.type)
        section |= {"folder": str(place / f"data-{self.type}")}
        overrides = [
            f"name={json.dumps(self.name)}",
            f"folder={json.dumps(str(folder))}",
            f"seed={seed}",
            f"data={json.dumps(section)}",
            "evaluate=null",
            *budget.overrides(),
            *self._learnt(task),
            *comparison.overrides,
            *(f"{key}={json.dumps(value)}" for key, value in self.varied.items()),
        ]
        return Trial(
            name=self.name,
            config=load_config(RunConfig, self.path, overrides),
            task=comparison.task,
            settings=comparison.settings,
            data=comparison.data,
            task_folder=place / "task",
            minutes=budget.minutes,
            threads=comparison.threads,
        )

    def _learnt(self, task: TaskBase) -> list[str]:
        completions = task.completions() if self.type == "language_model" else None
        return [f"train.completions={json.dumps(completions)}"] if completions else []

    def _fail(self, message: str, console: Console) -> None:
        self.messages.append(message)
        _print(console, f"{self.name} failed: {message}")


_FAILURES = (OutriderError, JobError, OSError, RuntimeError, ValueError, MemoryError)


def _train_in_process(trial: Trial, *, quiet: bool) -> dict[str, Any]:
    """Train and test in a separate process that writes to this terminal."""
    try:
        return run_alone(_train_and_test, trial, quiet, preload=[run_trial.__module__])
    except JobError as error:
        if not error.trace:
            raise
        log = Path(trial.config.folder) / "failure.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(error.trace, encoding="utf-8")
        raise JobError(f"{error} (see {log})") from error


def _train_and_test(trial: Trial, quiet: bool) -> dict[str, Any]:
    return run_trial(trial, Console(stderr=True, quiet=quiet, markup=False))


def _as_folder_name(value: Any) -> str:
    """Return a value as YAML, for the name of a folder."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("/", "-")


def _distinct(configs: Sequence[Path]) -> Iterable[Path]:
    """Return the configs, whose file names must differ."""
    names: dict[str, Path] = {}
    for path in configs:
        if path.stem in names:
            message = f"{names[path.stem]} and {path} have the same name; rename one"
            raise ConfigError(str(path), message)
        names[path.stem] = path
    return names.values()


def _digest(task: TaskBase) -> str:
    """Return a digest of the settings and the corpus."""
    corpus = str(task.corpus.resolve()) if task.corpus else ""
    text = json.dumps([corpus, task.config.model_dump(mode="json")], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _describe(task: TaskBase) -> dict[str, Any]:
    """Return the task's name, corpus and settings, without paths."""
    corpus = {} if task.corpus is None else {"corpus": task.corpus.stem}
    settings = task.config.model_dump(mode="json", exclude={"root"})
    return {"name": task.name, **corpus, **settings}


def _without(run: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in keys}


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
