"""What watches a training run: when it logs, its JSONL log, its TensorBoard events."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from outrider.errors import MissingExtraError
from outrider.torch.training.log import Log

__all__ = ["Cadence", "LogFile", "TensorBoard"]


class Cadence(TrainerCallback):
    """Closes a log line at every checkpoint and evaluation.

    The mean loss of a line then never spans a checkpoint, so a resumed run logs the same numbers.
    """

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Runs after the Trainer's own flow callback has decided what this step needs."""
        if control.should_save or control.should_evaluate:
            control.should_log = True


class LogFile(TrainerCallback):
    """Writes every record of the main process to the run's log."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """A line of training loss."""
        if state.is_world_process_zero:
            self.log.write({"event": "update", **logs})

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """A line of validation metrics."""
        if state.is_world_process_zero:
            self.log.write({"event": "evaluation", "step": state.global_step, **metrics})


class TensorBoard(TrainerCallback):
    """Mirrors the log as TensorBoard events; a resumed run replaces what lies past its start."""

    def __init__(self, folder: Path, *, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboard", "plot", "train.tensorboard") from None
        self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Training curves."""
        self._write("train", logs, state.global_step)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Validation curves."""
        self._write("valid", metrics, state.global_step)
        self.writer.flush()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Nothing is written after the last update."""
        self.writer.close()

    def _write(self, group: str, values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            if name != "step":
                self.writer.add_scalar(f"{group}/{name}", value, step)
