"""The end of a run: averaged weights, a model folder that explains itself, scores, a picture."""

import shutil
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.config import as_yaml
from outrider.data.prepared import Prepared
from outrider.errors import MissingExtraError
from outrider.evaluation.curve import draw_curve
from outrider.evaluation.evaluate import evaluate_text, evaluate_translation
from outrider.evaluation.results import show_score, versions, write_result
from outrider.models import LanguageModel, Seq2Seq
from outrider.training.average import average_weights
from outrider.training.card import write_card
from outrider.training.checkpoint import Progress, publish, select
from outrider.training.folder import RunFolder
from outrider.training.log import read_log
from outrider.training.run_config import RunConfig

__all__ = ["finish_run"]


def finish_run(
    config: RunConfig,
    folder: RunFolder,
    prepared: Prepared,
    model: Seq2Seq | LanguageModel,
    progress: Progress,
    console: Console,
) -> None:
    """Write the finished model and everything that is known about it."""
    averaged = select(folder.checkpoints.all(), config.train.average, config.train.averaged_by)
    model.load_state_dict(average_weights([one.folder for one in averaged]))
    steps = [one.progress.step for one in averaged]
    provenance = _provenance(config, prepared, progress, steps)
    _write_model(folder.model, config, prepared, model, provenance)
    console.print(f"averaged the checkpoints of steps {steps}", highlight=False)
    _draw(config, folder, console)
    if config.evaluate:
        _score(config, folder, model, provenance, console)


def _write_model(
    final: Path,
    config: RunConfig,
    prepared: Prepared,
    model: Seq2Seq | LanguageModel,
    provenance: dict[str, Any],
) -> None:
    staging = final.with_name(f".unfinished-{final.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    model.save_pretrained(staging)
    prepared.tokenizer.save(staging)
    (staging / "run.yaml").write_text(as_yaml(config), encoding="utf-8")
    write_result(staging / "provenance.json", provenance)
    write_card(staging, config, parameters=model.num_parameters(), provenance=provenance)
    publish(staging, final)


def _score(
    config: RunConfig,
    folder: RunFolder,
    model: Seq2Seq | LanguageModel,
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
            tokenize=test.tokenize,
        )
    write_result(folder.results, {"name": config.name, **result, **provenance})
    write_card(
        folder.model,
        config,
        parameters=model.num_parameters(),
        provenance=provenance,
        scores=result["scores"],
    )
    for name, value in result["scores"].items():
        console.print(f"{name}: {show_score(value)}", highlight=False)


def _draw(config: RunConfig, folder: RunFolder, console: Console) -> None:
    try:
        draw_curve(read_log(folder.log.path), folder.curve, title=config.name)
    except MissingExtraError as error:
        console.print(f"no learning curve: {error}", highlight=False)


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
