"""Check a run before it starts, so that its last step does not fail after hours.

Only configs and the test set are read.
"""

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outrider.config import config_key
from outrider.data.config import Task
from outrider.data.corpus import corpus_files
from outrider.data.lines import open_file, text_lines
from outrider.data.manifest import read_manifest
from outrider.data.prepare import find_source_tokenizer, find_tokenizer
from outrider.errors import ConfigError, MissingExtraError, ResourceError
from outrider.evaluation.metrics import check_installed
from outrider.run_config import RunConfig
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.kinds import KINDS, kind_of
from outrider.torch.training.kinds.base import Kind
from outrider.torch.training.start import started_config


def check_run(config: RunConfig, *, processes: int | None = None) -> None:
    """Refuse a run that cannot finish, without reading a corpus.

    `processes` is the number of processes the run will have; by default torchrun's.
    """
    check_settings(config)
    if config.train.shard and (processes or int(os.environ.get("WORLD_SIZE", "1"))) == 1:
        start = "torchrun --nproc-per-node=2 --no-python outrider train ..."
        raise ConfigError("train.shard", f"needs several processes; start with {start}")
    kind = kind_of(config)
    kind.check()
    if config.evaluate is not None:
        check_installed(config.evaluate.tokenize)
        _check_test_task(config, kind.task)
    _check_extras(config)
    _check_folder("folder", config.folder)
    if not _is_prepared(config):
        _check_folder("data.folder", config.data.folder)
        _check_corpora(config)
    _check_lengths(kind)
    if not RunFolder(Path(config.folder)).is_finished(config):
        _check_test_files(config)


def check_settings(config: RunConfig) -> None:
    """Refuse settings that contradict each other, without reading a file."""
    data, train, kind = config.data, config.train, config.model.type
    held_out = (data.valid, data.valid_rows, data.valid_fraction)
    if train.evaluate_every and data.train is not None and held_out == (None, None, None):
        raise ConfigError(
            "train.evaluate_every",
            f"got {train.evaluate_every}, but there is no validation set; name data.valid, "
            "data.valid_rows or data.valid_fraction, or set it to 0",
        )
    metric = KINDS[kind].metric
    if train.stop_metric == "bleu" and metric != "bleu":
        message = f"a {kind.replace('_', ' ')} has no bleu; expected {metric} or loss"
        raise ConfigError("train.stop_metric", message)
    if train.stop_metric == "tokens_per_round" and metric != "tokens_per_round":
        raise ConfigError("train.stop_metric", f"only a drafter has tokens_per_round, not a {kind}")
    if train.shard and config.model.lora is not None:
        raise ConfigError("train.shard", "does not combine with model.lora")
    if train.gradient_checkpointing and config.model.values.get("residual") == "reversible":
        message = "has no effect on reversible layers, which store no activations; leave it out"
        raise ConfigError("train.gradient_checkpointing", message)
    if config.evaluate is not None and not config.model.has_target:
        _check_test_task(config, KINDS[kind].task)


def _check_test_task(config: RunConfig, task: Task) -> None:
    """Check that the test suits the model's task and decoding modes."""
    test, translates = config.evaluate, task == "translation"
    assert test is not None
    if translates and test.text is not None:
        message = "applies to language models only; set evaluate.source and evaluate.reference"
        raise ConfigError("evaluate.text", message)
    if not translates and test.source is not None:
        raise ConfigError("evaluate.source", "a language model is tested on evaluate.text instead")
    if test.decode.mode != "ar" and not config.model.has_target:
        raise ConfigError(
            "evaluate.decode.mode",
            f"{test.decode.mode} needs a drafter or a ctc decoder, which is trained for this model "
            "afterwards; use ar",
        )


def _check_extras(config: RunConfig) -> None:
    if config.train.tensorboard and find_spec("tensorboard") is None:
        raise MissingExtraError("tensorboard", "plot", "train.tensorboard")
    if any(corpus.hub for corpus in config.data.corpora.values()) and find_spec("datasets") is None:
        raise MissingExtraError("datasets", "hub", "reading a dataset of the Hub")


def _check_folder(key: str, name: str) -> None:
    """Check that a folder can be created and written."""
    if not name.strip() or "\0" in name:
        raise ConfigError(key, f"got {name!r}, expected the name of a folder")
    path = Path(name).expanduser().absolute()
    existing = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    if not existing.is_dir():
        raise ConfigError(key, f"got {name!r}, but {existing} is not a folder; choose another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ResourceError(f"{key}: {name}: no permission to write in {existing}")


def _is_prepared(config: RunConfig) -> bool:
    return "\0" not in config.data.folder and Path(config.data.folder).exists()


def _check_corpora(config: RunConfig) -> None:
    """Check that the files of every corpus and every named tokenizer can be read."""
    data = config.data
    for key, corpus in data.corpora.items():
        with config_key(key):
            paths = corpus_files(corpus, data.path).values()
        _check_files(key, paths)
    if data.train is None:
        return
    if data.tokenizer.folder is not None:
        find_tokenizer(data, data.tokenizer.folder)
    if data.source_tokenizer is not None:
        find_source_tokenizer(data, data.source_tokenizer.folder)


def _check_lengths(kind: Kind[Any]) -> None:
    """Check that learned positions cover the longest training row."""
    config = kind.config
    values: Mapping[str, Any] = config.model.values
    if config.model.start is not None:
        values = vars(started_config(config))
    if config.model.has_target or values.get("position") != "learned" or values.get("memory"):
        return
    settings: Mapping[str, Any] = config.data.model_dump(mode="json")
    if _is_prepared(config):
        settings = read_manifest(Path(config.data.folder)).config
    key, longest = kind.longest_row(settings)
    positions = values.get("max_positions", kind.default_positions or longest)
    if isinstance(positions, int) and positions < longest:
        raise ConfigError(
            "model.max_positions",
            f"got {positions}, but a row of the data may have {longest} tokens; raise it or lower "
            f"data.{key}",
        )


def _check_test_files(config: RunConfig) -> None:
    test = config.evaluate
    if test is None:
        return
    if test.text is not None:
        _check_files("evaluate.text", [config.data.path(test.text)])
        return
    assert test.source is not None
    assert test.reference is not None
    sides = (("source", test.source), ("reference", test.reference))
    counts = {key: len(_read("evaluate." + key, config.data.path(name))) for key, name in sides}
    if counts["source"] != counts["reference"]:
        raise ConfigError(
            "evaluate.reference",
            f"{test.source} has {counts['source']} lines and {test.reference} has "
            f"{counts['reference']}; line n of one must be the translation of line n of the other",
        )


def _check_files(key: str, paths: Iterable[Path]) -> None:
    for path in paths:
        with config_key(key), open_file(path) as file:
            file.read(1)


def _read(key: str, path: Path) -> list[str]:
    with config_key(key):
        return text_lines(path)
