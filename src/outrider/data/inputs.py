"""Detects whether the settings or corpus files of a prepared folder changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.config import completed
from outrider.data.config import PrepareConfig
from outrider.data.corpus import corpus_files
from outrider.data.manifest import InputFile, Manifest
from outrider.errors import DataError
from outrider.files import file_sha256

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
        if file.name in paths and _changed(file, paths[file.name]):
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


def _changed(file: InputFile, path: Path) -> bool:
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
