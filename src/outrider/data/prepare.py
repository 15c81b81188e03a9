"""`outrider prepare`: converts corpora to a prepared folder in three streaming stages.

1. *read*: rows are read, normalised, filtered, and stored as text;
2. *tokenizer*: trained on an evenly spread sample of that text;
3. *encode*: text is encoded and written to shards.

Memory does not grow with the corpus. The folder is created atomically. Preparing again with the
same settings and unchanged corpus files does nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.config import Config, completed
from outrider.data.config import PrepareConfig, Task
from outrider.data.corpus import corpus_files
from outrider.data.manifest import InputFile, Manifest, read_manifest
from outrider.data.prepare_pairs import PairPreparation
from outrider.data.prepare_text import TextPreparation
from outrider.data.prepared import Prepared, open_prepared
from outrider.data.progress import Stages, show_stages
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ConfigError, DataError
from outrider.files import file_sha256, working_folder
from outrider.files.hub import model_folder
from outrider.text.tokenizer import Tokenizer, load_tokenizer
from outrider.text.tokenizer.pair import PairTokenizer, SourceTokenizer
from outrider.text.tokenizer.vocabulary import add_tokens

BLOCK_ROWS, BLOCK_CHARACTERS = 10_000, 8_000_000  # a block stays small even if its rows are long


def prepare(
    config: PrepareConfig, *, task: Task = "translation", progress: bool = True, force: bool = False
) -> Prepared:
    """Prepare the corpora of `config`, unless the folder is up to date.

    Args:
        config: Corpora, filters and output folder.
        task: `translation` reads pairs, `language_model` running text.
        progress: Show a progress bar for each stage.
        force: Replace a folder that was prepared with other settings or files.
    """
    folder = Path(config.folder)
    if config.train is None:
        return _open_existing(folder, task)
    _check_settings(config, task)
    if folder.exists():
        # read_manifest refuses a folder that is not a prepared one, so no other is replaced.
        changed = difference(read_manifest(folder), config, task)
        if changed and not force:
            raise DataError(
                f"{folder}: was prepared differently ({changed}); prepare with --force to replace "
                "it, or choose another data.folder"
            )
        if not changed and not force:
            return replace(open_prepared(folder), reused=True)
    with working_folder(folder) as work, show_stages(progress) as stages:
        _build(config, task, work, stages)
    return open_prepared(folder)


def _open_existing(folder: Path, task: Task) -> Prepared:
    """Open a folder that was prepared or distilled before."""
    if not folder.exists():
        raise ConfigError(
            "data.train",
            f"is required because {folder} does not exist; name a corpus, or write the folder "
            "with outrider distill first",
        )
    prepared = open_prepared(folder)
    if prepared.manifest.task != task:
        raise DataError(f"{folder}: was prepared for {prepared.manifest.task}, not for {task}")
    return replace(prepared, reused=True)


def _build(config: PrepareConfig, task: Task, work: Path, stages: Stages) -> None:
    kind = PairPreparation if task == "translation" else TextPreparation
    preparation = kind(config, work, stages)
    preparation.read()
    if config.tokenizer.folder is None:
        advance = stages.start("train tokenizer")
        sample = preparation.sample(config.tokenizer.sample)
        lines, verbatim = _counted(sample, advance), task == "language_model"
        tokenizer: Tokenizer = train_tokenizer(lines, config.tokenizer, verbatim=verbatim)
        stages.finish()
    else:
        tokenizer = find_tokenizer(config, config.tokenizer.folder)
    if config.source_tokenizer is not None:
        tokenizer = _with_source(tokenizer, config, config.source_tokenizer.folder)
    block_rows = max(1, min(BLOCK_ROWS, BLOCK_CHARACTERS // preparation.mean_characters))
    splits = preparation.encode(tokenizer, block_rows)
    tokenizer.save(work)
    Manifest(
        task=task,
        config=settings(config),
        inputs=describe_inputs(config),
        tokenizer=_describe(config, tokenizer),
        block_rows=block_rows,
        splits=splits,
    ).write(work)


def find_tokenizer(config: PrepareConfig, name: str) -> Tokenizer:
    """Load the tokenizer of a folder or a Hub name, and add the new tokens."""
    return add_tokens(load_tokenizer(_find(config, name)), config.tokenizer.new_tokens)


def find_source_tokenizer(config: PrepareConfig, name: str) -> Path:
    """Return the tokenizer file of a pretrained encoder, given by folder or Hub name."""
    folder = _find(config, name)
    file = folder / "tokenizer.json"
    if not file.is_file():
        message = f"{folder} has no tokenizer.json; write one with AutoTokenizer's save_pretrained"
        raise ConfigError("data.source_tokenizer.folder", message)
    return file


def _find(config: PrepareConfig, name: str) -> Path:
    """Return a folder relative to the corpora, or a model folder."""
    folder = config.path(name)
    return folder if folder.is_dir() else model_folder(name)


def _with_source(tokenizer: Tokenizer, config: PrepareConfig, name: str) -> PairTokenizer:
    """Use the tokenizer of a pretrained encoder for the sources."""
    file = find_source_tokenizer(config, name)
    target = tokenizer.target if isinstance(tokenizer, PairTokenizer) else tokenizer
    return PairTokenizer(SourceTokenizer(file), target)


def _check_settings(config: PrepareConfig, task: Task) -> None:
    """Refuse settings without effect and corpora of the wrong kind."""
    corpora = config.corpora
    if task == "translation":
        for key, corpus in corpora.items():
            if corpus.target and not corpus.source:
                raise ConfigError(f"{key}.source", "is required to translate; only target is given")
        alone = {key: corpus.sources_alone for key, corpus in config.training.items()}
        for key, sources_alone in alone.items():
            if sources_alone != alone["data.train"]:
                message = "either all corpora need targets or none; outrider distill adds targets"
                raise ConfigError(f"{key}.target", message)
        if "sequence_length" in _changed(config):
            raise ConfigError("data.sequence_length", "has no effect on translation")
        return
    if config.source_tokenizer is not None:
        raise ConfigError("data.source_tokenizer", "a language model has no source; remove it")
    for key, corpus in corpora.items():
        if corpus.source or corpus.source_column is not None:
            raise ConfigError(f"{key}.source", "a language model has only target text; remove it")
        if corpus.tag is not None:
            raise ConfigError(f"{key}.tag", "a language model has no source; remove it")
    if config.valid_rows is not None:
        raise ConfigError("data.valid_rows", "counts pairs; give valid_fraction for running text")
    for name in sorted(_changed(config.clean) - {"on_bad_text"}):
        raise ConfigError(f"data.clean.{name}", "has no effect on a language model's running text")


def _changed(config: Config) -> set[str]:
    """Return the keys that differ from their default; a saved config has all keys."""
    fields = type(config).model_fields
    return {name for name in fields if getattr(config, name) != fields[name].default}


def _counted(lines: Iterator[str], advance: Callable[[int], None]) -> Iterator[str]:
    for line in lines:
        advance(1)
        yield line


def _describe(config: PrepareConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    kind = "given" if config.tokenizer.folder else config.tokenizer.kind
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "eos", "unk", "bos")}
    return {"kind": kind, "vocab_size": tokenizer.vocab_size, **ids}


PLACES = {"folder", "root"}  # paths do not change the result


def describe_inputs(config: PrepareConfig) -> tuple[InputFile, ...]:
    """Return size, time and checksum of every corpus file."""
    described = []
    for name, path in _paths(config).items():
        status = path.stat()
        described.append(
            InputFile(
                name=name,
                bytes=status.st_size,
                modified_ns=status.st_mtime_ns,
                sha256=file_sha256(path),
            )
        )
    return tuple(described)


def settings(config: PrepareConfig) -> dict[str, Any]:
    """Return the settings that determine the result, as JSON values."""
    return config.model_dump(mode="json", exclude=PLACES)


def difference(manifest: Manifest, config: PrepareConfig, task: str) -> str:
    """Return the first difference between a prepared folder and `config`, or ""."""
    if manifest.task != task:
        return f"task was {manifest.task}, is now {task}"
    before = _flat(completed(manifest.config, config, leave_out=PLACES))
    now = _flat(settings(config))
    for key in [*now, *before]:
        if key not in now:
            return f"data.{key} was {before[key]!r}, which this version does not support"
        if before.get(key) != now[key]:
            return f"data.{key} was {before.get(key)!r}, is now {now[key]!r}"
    paths = _paths(config, missing_ok=True)
    recorded = {file.name for file in manifest.inputs}
    for name, path in paths.items():
        if name not in recorded:
            return f"{path} is new"
    for file in manifest.inputs:
        if file.name in paths and _file_changed(file, paths[file.name]):
            return f"{paths[file.name]} changed"
    return ""


def _paths(config: PrepareConfig, *, missing_ok: bool = False) -> dict[str, Path]:
    """Return the paths of the corpus files."""
    paths: dict[str, Path] = {}
    for corpus in config.corpora.values():
        try:
            paths |= corpus_files(corpus, config.path)
        except DataError:
            if not missing_ok:
                raise
    return paths


def _file_changed(file: InputFile, path: Path) -> bool:
    """Whether a file changed; a missing one (data prepared elsewhere) counts as unchanged."""
    if not path.is_file():
        return False
    status = path.stat()
    if (status.st_size, status.st_mtime_ns) == (file.bytes, file.modified_ns):
        return False
    return status.st_size != file.bytes or file_sha256(path) != file.sha256


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
