"""Train a run from its config to its model folder, resuming an interrupted one."""

from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch.distributed as dist
from rich.console import Console
from torch import nn
from transformers import TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging as transformers_logging

from outrider.data.labels import Completions, Masking
from outrider.data.plan import Cursor
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import ConfigError
from outrider.evaluation.metrics import tokenizer_for
from outrider.formats.folder import weights_of
from outrider.run_config import RunConfig
from outrider.text.tokenizer.vocabulary import add_mask
from outrider.torch.models import Drafter, LanguageModel, MaskedLm, Seq2Seq
from outrider.torch.models.ctc import Ctc
from outrider.torch.training.arguments import training_arguments
from outrider.torch.training.batches import BatchStream, Deal, PlannedBatch
from outrider.torch.training.build import (
    build_model,
    context_length,
    load_teacher,
    reads_source_end,
    run_task,
    target_folder,
    writes_right_to_left,
)
from outrider.torch.training.check import check_run
from outrider.torch.training.checkpoint import Checkpoint
from outrider.torch.training.finish import finish_run
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.memory import keep_memory
from outrider.torch.training.objectives import (
    CtcObjective,
    DrafterObjective,
    LanguageModelObjective,
    MaskedLmObjective,
    Objective,
    SegmentObjective,
    TranslationObjective,
    WordLevelObjective,
)
from outrider.torch.training.objectives.auxiliary import IntermediateObjective
from outrider.torch.training.precision import choose_precision
from outrider.torch.training.progress import LogFile, ProgressBar, TensorBoard
from outrider.torch.training.segments import SegmentStream
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
    keep_memory()
    transformers_logging.disable_progress_bar()
    folder = RunFolder(Path(config.folder))
    arguments = training_arguments(config.train, folder=folder.checkpoints.folder, seed=config.seed)
    main = arguments.process_index == 0
    with folder.locked() if main else nullcontext():
        with arguments.main_process_first(local=False):
            if main:
                prepared = _open(config, folder, arguments.world_size, restart, console)
            else:
                prepared = open_prepared(config.data.folder)
        resume = folder.checkpoints.latest()
        parts = folder.processes * config.train.accumulate
        arguments.gradient_accumulation_steps = parts // arguments.world_size
        bar = ProgressBar(console)
        trainer = _build_trainer(config, arguments, folder, prepared, resume, bar, console)
        with closing(bar):
            progress = trainer.run(resume)
        trained = resume is None or progress.step > resume.progress.step
        if main and (trained or not folder.is_finished(config)):
            model = build_model(config, prepared) if config.train.shard else trainer.model
            finish_run(config, folder, prepared, model, progress, console)
        trainer.accelerator.wait_for_everyone()
    return folder.model


def _open(
    config: RunConfig, folder: RunFolder, processes: int, restart: bool, console: Console
) -> Prepared:
    """Prepare the data and the run folder, and report how the run starts."""
    if restart:
        folder.clear()
    prepared = prepare(config.data, task=run_task(config), progress=console.is_terminal)
    prepared.verify()
    _check_targets(config, prepared)
    _check_validation(config, prepared)
    if config.model.has_target:
        _note_text_origin(config, prepared, console)
    resume, notes = folder.open(
        config,
        prepared=prepared.folder,
        processes=processes,
        bleu_tokenizer=_bleu_tokenizer(config, prepared),
    )
    for note in notes:
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


def _note_text_origin(config: RunConfig, prepared: Prepared, console: Console) -> None:
    """Print a note if the data is not the target's own output, which a drafter learns best from."""
    origin, target = prepared.manifest.origin, target_folder(config)
    if origin is None:
        content = "holds original text"
    elif origin["weights"] != weights_of(target):
        content = f"holds the output of {origin['model']}, which has other weights"
    else:
        return
    console.print(
        f"note: {prepared.folder} {content}; a {config.model.type} learns more from the target's "
        f"own output: outrider distill {target} --data {prepared.folder} --out FOLDER",
        highlight=False,
        soft_wrap=True,
    )


def _build_trainer(
    config: RunConfig,
    arguments: TrainingArguments,
    folder: RunFolder,
    prepared: Prepared,
    resume: Checkpoint | None,
    bar: ProgressBar,
    console: Console,
) -> Trainer:
    set_seed(config.seed)
    model = build_model(config, prepared)
    if isinstance(model, Drafter | Ctc):
        model.target.to(arguments.device)  # it may not be a submodule
    rank, world_size = arguments.process_index, arguments.world_size
    share = config.train.batch_tokens // (config.train.accumulate * world_size)
    segment = segment_length(model)
    teacher = load_teacher(config, prepared)
    if teacher is not None:
        teacher.to(arguments.device)
    objective = partial(training_objective, config, segment, teacher)
    precision = _resolve_precision(config, arguments, folder, prepared, model, objective, console)
    masked = isinstance(model, MaskedLm)
    validation = Validation(
        prepared,
        _objective(config, segment),
        batch_tokens=share,
        max_length=context_length(prepared),
        bleu=folder.chosen["bleu_tokenizer"],
        split=config.evaluate is None or config.evaluate.split,
        source_end=reads_source_end(model),
        right_to_left=writes_right_to_left(model),
        segment=segment,
        masking=Masking.of(add_mask(prepared.tokenizer)) if masked else None,
        completions=completions_of(config, prepared),
        rank=rank,
        world_size=world_size,
    )
    callbacks: list[TrainerCallback] = [LogFile(folder.log), bar] if rank == 0 else []
    if config.train.tensorboard and rank == 0:
        step = resume.progress.step if resume else 0
        callbacks.append(TensorBoard(folder.tensorboard, step=step))
    return Trainer(
        model,
        config.train.model_copy(update={"precision": precision}),
        stream=_stream(config, arguments, folder, prepared, resume, model),
        objective=objective(),
        checkpoints=folder.checkpoints,
        arguments=arguments,
        validate=validation,
        callbacks=callbacks,
    )


def _resolve_precision(
    config: RunConfig,
    arguments: TrainingArguments,
    folder: RunFolder,
    prepared: Prepared,
    model: nn.Module,
    objective: Callable[[], Objective],
    console: Console,
) -> str:
    """Return the run's precision; `auto` is measured once and shared with all processes."""
    precision = str(folder.chosen["precision"])
    if precision != "auto":
        return precision
    model.to(arguments.device)
    batch = next(iter(_stream(config, arguments, folder, prepared, None, model)))
    choice = choose_precision(model, objective, batch.tensors)
    agreed = [choice.precision]
    if arguments.world_size > 1:
        dist.broadcast_object_list(agreed)
    if arguments.process_index == 0:
        folder.choose(precision=agreed[0])
        folder.log.write({"event": "precision", "step": 0, **asdict(choice)})
        console.print(str(choice), highlight=False, soft_wrap=True)
    return agreed[0]


def completions_of(config: RunConfig, prepared: Prepared) -> Completions | None:
    """Return the markers of completions, if only completions are trained on."""
    marks = config.train.completions
    return None if marks is None else Completions.of(marks, prepared)


def segment_length(model: nn.Module) -> int | None:
    """Return the tokens of a segment for a model with memory, else None."""
    if isinstance(model, LanguageModel) and model.config.memory:
        return model.config.max_positions
    return None


def _stream(
    config: RunConfig,
    arguments: TrainingArguments,
    folder: RunFolder,
    prepared: Prepared,
    resume: Checkpoint | None,
    model: nn.Module,
) -> Iterable[PlannedBatch]:
    segment = segment_length(model)
    rank, world_size = arguments.process_index, arguments.world_size
    planned = folder.processes
    tokens = max(1, config.train.batch_tokens // (config.train.accumulate * planned))
    cursor = Cursor(**resume.progress.cursor) if resume else None
    if segment is not None:
        if planned != world_size:
            message = f"a model with memory must resume on the {planned} it was started on"
            raise ConfigError("processes", f"got {world_size}; {message}")
        return SegmentStream(
            prepared,
            tokens=tokens,
            segment=segment,
            seed=config.seed,
            rank=rank,
            world_size=world_size,
            cursor=cursor,
            completions=completions_of(config, prepared),
        )
    masking = None
    if isinstance(model, MaskedLm):
        masking = Masking.of(add_mask(prepared.tokenizer), config.train.mask, seed=config.seed)
    return BatchStream(
        prepared,
        tokens=tokens,
        seed=config.seed,
        world_size=planned,
        deal=Deal(config.train.accumulate, rank, world_size),
        cursor=cursor,
        max_length=context_length(prepared),
        source_end=reads_source_end(model),
        right_to_left=writes_right_to_left(model),
        augment=config.train.augment,
        masking=masking,
        completions=completions_of(config, prepared),
    )


def _objective(config: RunConfig, segment: int | None) -> Objective:
    """Build an objective; training and validation need one each, as each has its own memory."""
    return SegmentObjective() if segment is not None else _OBJECTIVES[config.model.type]()


_OBJECTIVES: dict[str, type[Objective]] = {
    "seq2seq": TranslationObjective,
    "language_model": LanguageModelObjective,
    "masked_lm": MaskedLmObjective,
    "drafter": DrafterObjective,
    "ctc": CtcObjective,
}


def training_objective(
    config: RunConfig, segment: int | None, teacher: Seq2Seq | None
) -> Objective:
    """Return the validation's objective, or one with predictions made in training only."""
    if config.train.intermediate_loss:
        return IntermediateObjective()
    if teacher is not None:
        return WordLevelObjective(teacher, share=config.train.teacher_share)
    return _objective(config, segment)
