"""The end of a run: averaged weights, a model folder that explains itself, scores, a picture.

Checkpoint averaging: the mean of the weights a run passed through at its end.

    w = (w_1 + ... + w_n) / n

It costs nothing at inference and takes the noise of the last updates out of the model.

The model folder of a drafter or a ctc decoder: its target's files, and a subfolder of its own.

config.json, model.safetensors, tokenizer ...   the target, as it was (new weights if joint)
drafter/ or ctc/                                what this run trained, its config and origin
"""

import shutil
from collections.abc import Sequence
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
from outrider.files import read_json, working_folder, write_json, write_text
from outrider.files.hub import SAFE_FILES
from outrider.formats.folder import model_files, weights_of
from outrider.formats.weights import weight_files
from outrider.run_config import RunConfig
from outrider.runtime.provenance import show_score, versions, write_result
from outrider.show.pictures.curve import draw_curve
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.vocabulary import add_mask
from outrider.torch.evaluation.likelihood import evaluate_text
from outrider.torch.models import Drafter, MaskedLm
from outrider.torch.models.base import TokenModel
from outrider.torch.models.ctc import Ctc, split_weights
from outrider.torch.training.build import Trained, encoder_folder, target_folder
from outrider.torch.training.card import add_side_decoder_section, write_card
from outrider.torch.training.checkpoint import Progress
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.log import read_log
from outrider.torch.training.lora import merge_adapters
from outrider.torch.training.start import start_folder

__all__ = ["average_weights", "finish_run", "write_side_decoder"]


def average_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Average the `model.safetensors` of the folders, one tensor at a time, in float64."""
    files = [_open(folder / "model.safetensors") for folder in folders]
    names = list(files[0].keys())
    for file, folder in zip(files, folders, strict=True):
        if set(file.keys()) != set(names):
            raise ModelError(f"{folder}: holds other tensors than {folders[0]}; average one run")
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
        raise ModelError(f"{path}: no such file; a checkpoint to average holds its weights there")
    try:
        return safe_open(str(path), framework="pt")
    except SafetensorError as error:
        raise ModelError(f"{path}: damaged or not safetensors ({error})") from None


ARGOS = "model"
"""Subfolder of an Argos package that holds the model."""
_OTHERS = {"drafter": "ctc", "ctc": "drafter"}
_FILES = (*SAFE_FILES, "run.yaml")


def write_side_decoder(decoder: Drafter | Ctc, target: Path, folder: Path) -> str:
    """Fill `folder` with the target and its side decoder; return what people should know, or ""."""
    kind = "drafter" if isinstance(decoder, Drafter) else "ctc"
    joint = isinstance(decoder, Ctc) and decoder.config.joint
    if joint and model_files(target) != weight_files(target):  # of another format: written as ours
        load_tokenizer(target).save(folder)
    else:
        _copy(target, folder, leave_out="*.safetensors*" if joint else "")
        if (target / ARGOS / "model.bin").is_file():
            _copy(target / ARGOS, folder / ARGOS)
    other = target / _OTHERS[kind]
    note = ""
    if joint and other.is_dir():
        note = f"left out {other}: the weights it was trained for have changed; train it again"
    elif other.is_dir():
        _copy(other, folder / other.name)
    own = decoder.state_dict()
    if isinstance(decoder, Ctc) and joint:
        own, theirs = split_weights(own)
        decoder.target.save_pretrained(folder, state_dict=theirs)
    decoder.save_pretrained(folder / kind, state_dict=own)
    return note


def _copy(source: Path, folder: Path, *, leave_out: str = "") -> None:
    """Copy what belongs to a model, and nothing that only happens to lie there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        wanted = path.is_file() and any(path.match(pattern) for pattern in _FILES)
        if wanted and not (leave_out and path.match(leave_out)):
            shutil.copyfile(path, folder / path.name)


def finish_run(
    config: RunConfig,
    folder: RunFolder,
    prepared: Prepared,
    model: Trained,
    progress: Progress,
    console: Console,
) -> None:
    """Write the finished model and everything that is known about it."""
    averaged, notes = folder.checkpoints.choose(config.train.average, config.train.averaged_by)
    for left_out in notes:
        console.print(left_out, highlight=False, soft_wrap=True)
    folders = [one.folder for one in averaged]
    if config.model.lora is None:
        model.load_state_dict(average_weights(folders))
    else:
        merge_adapters(model, folders)
    steps = [one.progress.step for one in averaged]
    provenance = _provenance(config, prepared, progress, steps)
    provenance["training"] |= {name: value for name, value in folder.chosen.items() if value}
    encoder = encoder_folder(config)
    if encoder is not None:
        name = config.model.values["encoder"]["pretrained"]
        provenance["encoder"] = {"pretrained": name, "weights": weights_of(encoder)}
    if config.model.start is not None:
        weights = weights_of(start_folder(config))
        provenance["start"] = {"model": config.model.start, "weights": weights}
    if config.model.has_target:
        provenance |= _side_decoder_provenance(config, folder, prepared)
    note = _write_model(folder, config, prepared, model, provenance)
    if note:
        console.print(note, highlight=False, soft_wrap=True)
    console.print(f"averaged the checkpoints of steps {steps}", highlight=False)
    _draw(config, folder, console)
    if config.evaluate:
        _score(config, folder, model, provenance, console)


def _write_model(
    folder: RunFolder,
    config: RunConfig,
    prepared: Prepared,
    model: Trained,
    provenance: dict[str, Any],
) -> str:
    """Write the model folder; return what people should know about it, or ""."""
    final = folder.model
    note = ""
    with working_folder(final) as work:
        if isinstance(model, TokenModel):
            model.save_pretrained(work)
            masked = isinstance(model, MaskedLm)
            (add_mask(prepared.tokenizer) if masked else prepared.tokenizer).save(work)
            if config.evaluate is not None and not config.evaluate.split:
                _remember_whole(work)
        else:
            note = write_side_decoder(model, target_folder(config), work)
        beside = work / folder.written(config).relative_to(final)
        write_text(beside / "run.yaml", as_yaml(config))
        write_result(beside / "provenance.json", provenance)
        _write_card(work, config, model, provenance)
    return note


def _remember_whole(model_folder: Path) -> None:
    """Let whoever loads the model show it whole lines."""
    path = model_folder / "generation_config.json"
    values = read_json(path) if path.is_file() else {}
    write_json(path, {**values, "split": False})


def _write_card(
    model_folder: Path,
    config: RunConfig,
    model: Trained,
    provenance: dict[str, Any],
    scores: dict[str, Any] | None = None,
) -> None:
    """A card of its own for a model; a drafter's is a part of its target's."""
    write = write_card if isinstance(model, TokenModel) else add_side_decoder_section
    weights = dict(model.named_parameters()).items()
    parameters = sum(w.numel() for name, w in weights if not name.startswith("target."))
    write(model_folder, config, parameters=parameters, provenance=provenance, scores=scores)


def _score(
    config: RunConfig,
    folder: RunFolder,
    model: Trained,
    provenance: dict[str, Any],
    console: Console,
) -> None:
    test = config.evaluate
    assert test is not None
    if test.text is not None:
        result = evaluate_text(folder.model, text=config.data.path(test.text), tail=test.tail)
    else:
        assert test.source is not None
        assert test.reference is not None
        result = evaluate_translation(
            folder.model,
            source=config.data.path(test.source),
            reference=config.data.path(test.reference),
            decode=test.decode,
            metrics=test.metrics,
            tokenize=test.tokenize,
            split=test.split,
        )
    write_result(folder.results, {"name": config.name, **result, **provenance})
    _write_card(folder.model, config, model, provenance, result["scores"])
    for name, value in result["scores"].items():
        console.print(f"{name}: {show_score(value)}", highlight=False)


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
            "files": [one.model_dump(mode="json") for one in manifest.inputs],
            "rows": {name: split.rows for name, split in manifest.splits.items()},
        },
        "versions": versions(),
    }


def _side_decoder_provenance(
    config: RunConfig, folder: RunFolder, prepared: Prepared
) -> dict[str, Any]:
    evaluations = [one for one in read_log(folder.log.path) if one["event"] == "evaluation"]
    return {
        "target": {"model": config.model.target, "weights": weights_of(target_folder(config))},
        "distilled": prepared.manifest.origin,
        "validation": evaluations[-1] if evaluations else None,
    }
