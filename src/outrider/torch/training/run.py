"""Train a run from its config to its model folder, resuming an interrupted one."""

from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
from rich.console import Console
from transformers import TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging as transformers_logging

from outrider.data.plan import Cursor
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import ConfigError
from outrider.evaluation.metrics import tokenizer_for
from outrider.run_config import RunConfig
from outrider.torch.training.arguments import training_arguments
from outrider.torch.training.batches import Processes
from outrider.torch.training.check import check_run
from outrider.torch.training.checkpoint import Checkpoint
from outrider.torch.training.finish import finish_run
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.kinds import kind_of
from outrider.torch.training.kinds.base import Kind
from outrider.torch.training.memory import keep_memory
from outrider.torch.training.precision import PrecisionChoice, choose_precision
from outrider.torch.training.progress import LogFile, ProgressBar, TensorBoard
from outrider.torch.training.trainer import Trainer
from outrider.torch.training.validation import Validation, valid_texts


def train_run(config: RunConfig, *, restart: bool = False, console: Console | None = None) -> Path:
    """Train a run to its end and return its model folder.

    Args:
        config: The run; `outrider.config.load_config(RunConfig, path)` reads one.
        restart: Discard the results of an earlier start of this run.
        console: Where to report; by default nowhere.
    """
    console = console or Console(quiet=True)
    check_run(config)
    kind = kind_of(config)
    keep_memory()
    transformers_logging.disable_progress_bar()
    folder = RunFolder(Path(config.folder))
    arguments = training_arguments(config.train, folder=folder.checkpoints.folder, seed=config.seed)
    main = arguments.process_index == 0
    with folder.locked() if main else nullcontext():
        with arguments.main_process_first(local=False):
            if main:
                prepared = _open(kind, folder, arguments.world_size, restart, console)
            else:
                prepared = open_prepared(config.data.folder)
        resume = folder.checkpoints.latest()
        parts = folder.processes * config.train.accumulate
        arguments.gradient_accumulation_steps = parts // arguments.world_size
        bar = ProgressBar(console)
        trainer = _build_trainer(kind, arguments, folder, prepared, resume, bar, console)
        with closing(bar):
            progress = trainer.run(resume)
        trained = resume is None or progress.step > resume.progress.step
        if main and (trained or not folder.is_finished(config)):
            model = kind.build(prepared) if config.train.shard else trainer.model
            finish_run(kind, folder, prepared, model, progress, console)
        trainer.accelerator.wait_for_everyone()
    return folder.model


def _open(
    kind: Kind[Any], folder: RunFolder, processes: int, restart: bool, console: Console
) -> Prepared:
    """Prepare the data and the run folder, and report how the run starts."""
    config = kind.config
    if restart:
        folder.clear()
    prepared = prepare(config.data, task=kind.task, progress=console.is_terminal)
    prepared.verify()
    _check_targets(config, prepared)
    _check_validation(config, prepared)
    resume, notes = folder.open(
        config,
        prepared=prepared.folder,
        processes=processes,
        bleu_tokenizer=_bleu_tokenizer(config, prepared),
    )
    for note in [*kind.notes(prepared), *notes]:
        console.print(note, highlight=False, soft_wrap=True)
    if folder.is_finished(config):
        message = f"{folder.path} is trained already; --restart would start over"
    else:
        message = f"resuming from {resume.folder}" if resume else f"starting in {folder.path}"
    console.print(message, highlight=False, soft_wrap=True)
    return prepared


def _check_targets(config: RunConfig, prepared: Prepared) -> None:
    if not prepared.manifest.splits["train"].target_tokens:
        fix = f"generate them with outrider distill MODEL --data {prepared.folder} --out FOLDER"
        raise ConfigError("data.folder", f"{prepared.folder} holds sources without targets; {fix}")


def _check_validation(config: RunConfig, prepared: Prepared) -> None:
    if config.train.evaluate_every and "valid" not in prepared.manifest.splits:
        raise ConfigError(
            "train.evaluate_every",
            f"got {config.train.evaluate_every}, but {prepared.folder} has no validation set; name "
            "data.valid, data.valid_rows or data.valid_fraction, or set it to 0",
        )


def _bleu_tokenizer(config: RunConfig, prepared: Prepared) -> str | None:
    """Return the tokenizer of the validation's BLEU; None without BLEU."""
    if config.train.stop_metric != "bleu" or not config.train.evaluate_every:
        return None
    tokenize = config.evaluate.tokenize if config.evaluate else "auto"
    return tokenizer_for(valid_texts(prepared)[1]) if tokenize == "auto" else tokenize


def _build_trainer(
    kind: Kind[Any],
    arguments: TrainingArguments,
    folder: RunFolder,
    prepared: Prepared,
    resume: Checkpoint | None,
    bar: ProgressBar,
    console: Console,
) -> Trainer:
    config = kind.config
    set_seed(config.seed)
    model = kind.build(prepared)
    kind.load_others(model, prepared, arguments.device)
    main = arguments.process_index == 0
    processes = Processes(arguments.process_index, arguments.world_size, folder.processes)
    precision = str(folder.chosen["precision"])
    if precision == "auto":
        model.to(arguments.device)
        batch = next(iter(kind.stream(model, prepared, processes)))
        choice = choose_precision(model, kind.training_objective, batch.tensors)
        precision = _agree(choice, arguments, folder, console)
    cursor = Cursor(**resume.progress.cursor) if resume else None
    callbacks: list[TrainerCallback] = [LogFile(folder.log), bar] if main else []
    if config.train.tensorboard and main:
        step = resume.progress.step if resume else 0
        callbacks.append(TensorBoard(folder.tensorboard, step=step))
    return Trainer(
        model,
        config.train.model_copy(update={"precision": precision}),
        stream=kind.stream(model, prepared, processes, cursor),
        objective=kind.training_objective(),
        checkpoints=folder.checkpoints,
        arguments=arguments,
        validate=Validation(kind, prepared, processes, folder.chosen["bleu_tokenizer"]),
        callbacks=callbacks,
    )


def _agree(
    choice: PrecisionChoice, arguments: TrainingArguments, folder: RunFolder, console: Console
) -> str:
    """Share the measured precision with all processes and record it."""
    agreed = [choice.precision]
    if arguments.world_size > 1:
        dist.broadcast_object_list(agreed)
    if arguments.process_index == 0:
        folder.choose(precision=agreed[0])
        folder.log.write({"event": "precision", "step": 0, **asdict(choice)})
        console.print(str(choice), highlight=False, soft_wrap=True)
    return agreed[0]
