"""Finish a run: average checkpoints, write the model folder, score it, draw the learning curve.

Checkpoint averaging takes the mean of the weights of n checkpoints, which removes noise of the last
updates at no cost of inference:

    w = (w_1 + ... + w_n) / n
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider.config import as_yaml
from outrider.data.prepared import Prepared
from outrider.errors import MissingExtraError, ModelError
from outrider.evaluation.evaluate import evaluate_translation
from outrider.files import working_folder, write_text
from outrider.formats.folder import weights_of
from outrider.run_config import RunConfig
from outrider.runtime.provenance import show_score, versions, write_result
from outrider.show.curve import draw_curve
from outrider.torch.evaluation.likelihood import evaluate_text
from outrider.torch.training.checkpoint import Progress
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.kinds.base import Kind
from outrider.torch.training.log import read_log
from outrider.torch.training.lora import merge_adapters
from outrider.torch.training.start import origins


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
