"""Finish a run: average checkpoints, write the model folder, score it, draw the learning curve.

Checkpoint averaging takes the mean of the weights of n checkpoints, which removes noise of the last
updates at no cost of inference:

    w = (w_1 + ... + w_n) / n

The model folder of a drafter or a ctc decoder holds the target's files and a subfolder:

    config.json, model.safetensors, tokenizer ...   the target, unchanged (new weights if joint)
    drafter/ or ctc/                                the trained decoder, its config and provenance
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
from outrider.show.curve import draw_curve
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


ARGOS = "model"
"""Subfolder of an Argos package that holds the model."""
_OTHERS = {"drafter": "ctc", "ctc": "drafter"}
_FILES = (*SAFE_FILES, "run.yaml")


def write_side_decoder(decoder: Drafter | Ctc, target: Path, folder: Path) -> str:
    """Write the target and its side decoder into `folder`; return a note for the user, or ""."""
    kind = "drafter" if isinstance(decoder, Drafter) else "ctc"
    joint = isinstance(decoder, Ctc) and decoder.config.joint
    if joint and model_files(target) != weight_files(target):  # of another format: write ours
        load_tokenizer(target).save(folder)
    else:
        _copy(target, folder, leave_out="*.safetensors*" if joint else "")
        if (target / ARGOS / "model.bin").is_file():
            _copy(target / ARGOS, folder / ARGOS)
    other = target / _OTHERS[kind]
    note = ""
    if joint and other.is_dir():
        note = f"left out {other}: its target's weights have changed; train it again"
    elif other.is_dir():
        _copy(other, folder / other.name)
    own = decoder.state_dict()
    if isinstance(decoder, Ctc) and joint:
        own, target_weights = split_weights(own)
        decoder.target.save_pretrained(folder, state_dict=target_weights)
    decoder.save_pretrained(folder / kind, state_dict=own)
    return note


def _copy(source: Path, folder: Path, *, leave_out: str = "") -> None:
    """Copy the files that belong to a model."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        known = path.is_file() and any(path.match(pattern) for pattern in _FILES)
        if known and not (leave_out and path.match(leave_out)):
            shutil.copyfile(path, folder / path.name)


def finish_run(
    config: RunConfig,
    folder: RunFolder,
    prepared: Prepared,
    model: Trained,
    progress: Progress,
    console: Console,
) -> None:
    """Write the finished model with its provenance, card, scores and learning curve."""
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
    """Write the model folder; return a note for the user, or ""."""
    final = folder.model
    note = ""
    with working_folder(final) as work:
        if isinstance(model, TokenModel):
            model.save_pretrained(work)
            masked = isinstance(model, MaskedLm)
            (add_mask(prepared.tokenizer) if masked else prepared.tokenizer).save(work)
            if config.evaluate is not None and not config.evaluate.split:
                _store_no_split(work)
        else:
            note = write_side_decoder(model, target_folder(config), work)
        metadata = work / folder.metadata(config).relative_to(final)
        write_text(metadata / "run.yaml", as_yaml(config))
        write_result(metadata / "provenance.json", provenance)
        _write_card(work, config, model, provenance)
    return note


def _store_no_split(model_folder: Path) -> None:
    """Store that the model decodes whole lines."""
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
    """Write a model's card, or a drafter's section of its target's card."""
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
            "files": [file.model_dump(mode="json") for file in manifest.inputs],
            "rows": {name: split.rows for name, split in manifest.splits.items()},
        },
        "versions": versions(),
    }


def _side_decoder_provenance(
    config: RunConfig, folder: RunFolder, prepared: Prepared
) -> dict[str, Any]:
    evaluations = [r for r in read_log(folder.log.path) if r["event"] == "evaluation"]
    return {
        "target": {"model": config.model.target, "weights": weights_of(target_folder(config))},
        "distilled": prepared.manifest.origin,
        "validation": evaluations[-1] if evaluations else None,
    }
