"""Train a run from its config to its model folder, resuming an interrupted one.

At the end checkpoints are averaged, the model folder is written and scored, and the learning curve
is drawn. Checkpoint averaging takes the mean of the weights of n checkpoints, which removes noise
of the last updates at no cost of inference:

    w = (w_1 + ... + w_n) / n
"""

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging as transformers_logging

from outrider.config import as_yaml
from outrider.data.plan import Cursor
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import ConfigError, MissingExtraError, ModelError
from outrider.evaluation.evaluate import evaluate_translation
from outrider.evaluation.metrics import tokenizer_for
from outrider.files import working_folder, write_text
from outrider.formats.folder import weights_of
from outrider.run_config import RunConfig
from outrider.runtime.provenance import show_score, versions, write_result
from outrider.show.curve import draw_curve
from outrider.torch.evaluation.likelihood import evaluate_text
from outrider.torch.training.batches import Deal
from outrider.torch.training.check import check_run
from outrider.torch.training.checkpoint import Checkpoint, Progress
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.kinds import kind_of
from outrider.torch.training.kinds.base import Kind
from outrider.torch.training.log import read_log
from outrider.torch.training.lora import merge_adapters
from outrider.torch.training.memory import keep_memory
from outrider.torch.training.precision import PrecisionChoice, choose_precision
from outrider.torch.training.progress import LogFile, ProgressBar, TensorBoard
from outrider.torch.training.start import origins
from outrider.torch.training.trainer import Trainer, training_arguments
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
                prepared = _prepare(kind, folder, arguments.world_size, restart, console)
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


def _prepare(
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
    deal = Deal(
        arguments.process_index, arguments.world_size, folder.processes, config.train.accumulate
    )
    precision = str(folder.chosen["precision"])
    if precision == "auto":
        model.to(arguments.device)
        batch = next(iter(kind.stream(model, prepared, deal)))
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
        stream=kind.stream(model, prepared, deal, cursor),
        objective=kind.training_objective(),
        checkpoints=folder.checkpoints,
        arguments=arguments,
        validate=Validation(kind, prepared, deal, folder.chosen["bleu_tokenizer"]),
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


def average_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Average the `model.safetensors` of the folders in float64."""
    files = [_open(folder / "model.safetensors") for folder in folders]
    names = list(files[0].keys())
    for file, folder in zip(files, folders, strict=True):
        if set(file.keys()) != set(names):
            raise ModelError(f"{folder}: has other tensors than {folders[0]}; average one run")
    return {name: _mean([file.get_tensor(name) for file in files]) for name in names}


def _mean(tensors: list[Tensor]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point() or len(tensors) == 1:
        return first
    total = first.to(torch.float64)
    for tensor in tensors[1:]:
        total += tensor
    return (total / len(tensors)).to(first.dtype)


def _open(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"{path}: no such file; averaging reads weights from it")
    try:
        return safe_open(str(path), framework="pt")
    except SafetensorError as error:
        raise ModelError(f"{path}: damaged or not safetensors ({error})") from error


def finish_run(
    kind: Kind[Any],
    folder: RunFolder,
    prepared: Prepared,
    model: Any,
    progress: Progress,
    console: Console,
) -> None:
    """Write the finished model with its provenance, card, scores and learning curve."""
    config = kind.config
    checkpoints, notes = folder.checkpoints.choose(config.train.average, config.train.averaged_by)
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True)
    folders = [checkpoint.folder for checkpoint in checkpoints]
    if config.model.lora is None:
        model.load_state_dict(average_weights(folders))
    else:
        merge_adapters(model, folders)
    steps = [checkpoint.progress.step for checkpoint in checkpoints]
    provenance = _provenance(config, prepared, progress, steps)
    provenance["training"] |= {name: value for name, value in folder.chosen.items() if value}
    provenance |= kind.provenance(prepared, folder.log)
    for key, origin in origins(config).items():
        provenance[key] = {"model": getattr(config.model, key), "weights": weights_of(origin)}
    weights = dict(model.named_parameters()).items()
    parameters = sum(w.numel() for name, w in weights if not name.startswith("target."))
    write_card = partial(kind.write_card, parameters=parameters, provenance=provenance)
    with working_folder(folder.model) as work:
        note = kind.write(model, prepared, work)
        metadata = work / folder.metadata(config).relative_to(folder.model)
        write_text(metadata / "run.yaml", as_yaml(config))
        write_result(metadata / "provenance.json", provenance)
        write_card(work)
    if note:
        console.print(note, highlight=False, soft_wrap=True)
    console.print(f"averaged the checkpoints of steps {steps}", highlight=False)
    _draw(config, folder, console)
    if config.evaluate:
        result = _score(config, folder)
        write_result(folder.results, {"name": config.name, **result, **provenance})
        write_card(folder.model, scores=result["scores"])
        for name, value in result["scores"].items():
            console.print(f"{name}: {show_score(value)}", highlight=False)


def _score(config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    test = config.evaluate
    assert test is not None
    if test.text is not None:
        return evaluate_text(folder.model, text=config.data.path(test.text), tail=test.tail)
    assert test.source is not None
    assert test.reference is not None
    return evaluate_translation(
        folder.model,
        source=config.data.path(test.source),
        reference=config.data.path(test.reference),
        decode=test.decode,
        metrics=test.metrics,
        tokenize=test.tokenize,
        split=test.split,
    )


def _draw(config: RunConfig, folder: RunFolder, console: Console) -> None:
    try:
        draw_curve(read_log(folder.log.path), folder.curve, title=config.name)
    except MissingExtraError as error:
        console.print(f"no learning curve: {error}", highlight=False, markup=False)


def _provenance(
    config: RunConfig, prepared: Prepared, progress: Progress, averaged: list[int]
) -> dict[str, Any]:
    manifest = prepared.manifest
    return {
        "seed": config.seed,
        "config": config.model_dump(mode="json"),
        "training": {
            "steps": progress.step,
            "epochs": progress.cursor["epoch"],
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 1),
            "averaged": averaged,
        },
        "corpus": {
            "files": [file.model_dump(mode="json") for file in manifest.inputs],
            "rows": {name: split.rows for name, split in manifest.splits.items()},
        },
        "versions": versions(),
    }
