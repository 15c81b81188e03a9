"""Built-in tasks. The file name is the task's name: `--task copy` is `copy.py`.

A task writes text files and returns the `data` section that reads them, so it is trained like any
corpus.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from outrider.config import build_config
from outrider.errors import ConfigError, nearest
from outrider_lab.tasks.base import Example, SequenceTask, TaskBase, TaskConfig, TestSet

__all__ = [
    "Example",
    "SequenceTask",
    "TaskBase",
    "TaskConfig",
    "TestSet",
    "build_task",
    "load_task",
    "task_names",
]


def task_names() -> list[str]:
    """Return the names accepted by `--task`, read from the files in this folder."""
    return sorted(module.name for module in iter_modules(__path__) if module.name != "base")


def load_task(name: str) -> type[TaskBase]:
    """Import the task of this name."""
    if name not in task_names():
        hint = nearest(name, task_names())
        expected = ", ".join(task_names())
        raise ConfigError("--task", f"unknown {name!r}{hint}; expected one of {expected}")
    task: type[TaskBase] = import_module(f"{__name__}.{name}").Task
    return task


def build_task(
    name: str, settings: Mapping[str, Any] | None = None, *, data: Path | None = None
) -> TaskBase:
    """Build a task from its settings; `data` is the corpus of a task that needs one."""
    task = load_task(name)
    config = build_config(task.config_class, settings or {}, prefix="task.")
    return task(config, data)
