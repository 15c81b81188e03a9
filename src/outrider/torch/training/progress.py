"""Callbacks of training: progress bar, log file and TensorBoard."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from transformers import TrainerCallback, TrainerState

from outrider.errors import MissingExtraError
from outrider.torch.training.log import Log


class ProgressBar(TrainerCallback):
    """Shows step, epoch, loss, speed and time left: a bar on a terminal, else lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.task = TaskID(0)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not self.console.is_terminal:
            return
        self.bar = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.bar.add_task(
            "train", total=state.max_steps, completed=state.global_step, note=""
        )
        self.bar.start()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.bar:
            self.bar.update(self.task, completed=state.global_step)

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        note = (
            f"epoch {logs['epoch'] + 1} · loss {logs['loss']:.3f} · "
            f"{logs['tokens_per_second']:,.0f} tokens/s"
        )
        if self.bar:
            self.bar.update(self.task, note=note)
        elif state.is_world_process_zero:
            self._print(f"step {state.global_step}/{state.max_steps} · {note}")

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            shown = " · ".join(
                f"{name} {value:.3f}" if math.isfinite(value) else f"{name} {value}"
                for name, value in kwargs["metrics"].items()
            )
            self._print(f"step {state.global_step} · {shown}")

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        """Stop the bar, also after an error."""
        if self.bar:
            self.bar.stop()
            self.bar = None

    def _print(self, text: str) -> None:
        console = self.bar.console if self.bar else self.console
        console.print(text, highlight=False, markup=False, soft_wrap=True)


class Cadence(TrainerCallback):
    """Logs at every checkpoint and evaluation.

    The mean loss of a record then never spans a checkpoint, so a resumed run logs the same numbers.
    """

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Called after the Trainer's own flow callback has set `control`."""
        if control.should_save or control.should_evaluate:
            control.should_log = True


class LogFile(TrainerCallback):
    """Writes every record of the main process to the run's log."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.log.write({"event": "update", **kwargs["logs"]})

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            record = {"event": "evaluation", "step": state.global_step, **kwargs["metrics"]}
            self.log.write(record)


class TensorBoard(TrainerCallback):
    """Writes the log as TensorBoard events; a resumed run replaces later ones."""

    def __init__(self, folder: Path, *, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboard", "plot", "train.tensorboard") from None
        self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._write("train", kwargs["logs"], state.global_step)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._write("valid", kwargs["metrics"], state.global_step)
        self.writer.flush()

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.writer.close()

    def _write(self, group: str, values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            if name != "step":
                self.writer.add_scalar(f"{group}/{name}", value, step)
