"""Translating a folder of text files, each of which becomes one of the same name.

Line n of an output is the translation of line n of its input. A finished file counts as long as its
input is what it was; one that was changed, added or mended is translated anew when the command is
given again.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from outrider import __version__
from outrider.data.lines import open_lines
from outrider.data.manifest import Shard
from outrider.errors import ConfigError, DataError, ModelError
from outrider.files import file_sha256, read_json, replacing, write_json
from outrider.formats.identity import weights_of
from outrider.hub import model_folder
from outrider.jobs.folder import TRANSLATED, JobFolder, check_origin, is_own, open_job
from outrider.jobs.run import finish_units
from outrider.jobs.unit import Advance, Unit
from outrider.jobs.workers import Run, hired
from outrider.runtime.load import load
from outrider.runtime.options import decode_settings
from outrider.runtime.result import format_results
from outrider.runtime.translator import Translator

__all__ = ["translate_shards"]


@dataclass(frozen=True)
class _Asked:
    """What is asked for; small enough to be sent to workers."""

    model: Path
    source: Path
    place: dict[str, Any] = field(default_factory=dict)
    """Keywords of `load`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keywords of `Translator.results_iter`."""

    def load(self) -> Translator:
        loaded = load(self.model, **self.place)
        if not isinstance(loaded, Translator):
            raise ModelError(f"{self.model}: is a language model; use outrider generate")
        return loaded

    def origin(self) -> dict[str, Any]:
        """All that the output depends on, but for the files."""
        decode = {**self.options, **{key: self.place[key] for key in sorted(self.place)}}
        for key in ("device", "threads", "batch_tokens"):  # change when, not what
            decode.pop(key, None)
        return {
            "model": str(self.model),
            "weights": weights_of(self.model),
            "decode": decode,
            "dtype": self.place.get("dtype"),
            "data": None,
            "rows": None,
            "outrider": __version__,
        }


@dataclass(frozen=True)
class _Translating:
    """Reads a file, translates its lines, writes a file."""

    translator: Translator
    asked: _Asked
    folder: JobFolder

    def __call__(self, unit: Unit, advance: Advance) -> None:
        if self.folder.is_done(unit):  # by a worker that ended before it could say so
            return
        began, rows = time.monotonic(), 0
        options = dict(self.asked.options)
        config = decode_settings(self.translator.defaults, _decoding(options))
        if config.strategy == "sample":  # row i of all files draws as row i of one would
            options["seed"] = config.seed + unit.first
        with (
            open_lines(self.asked.source / unit.input) as lines,
            replacing(self.folder.path / unit.name) as file,
        ):
            texts = (line.decode("utf-8", "replace") for line in lines)
            for rows, results in enumerate(self.translator.results_iter(texts, **options), 1):
                file.write(format_results(results, rows - 1, n_best=options.get("n_best", 1)))
                advance(1)
            if rows != unit.rows:
                raise DataError(f"{unit.input}: was changed while it was translated; run again")
        sha256 = file_sha256(self.folder.path / unit.name)
        shard = Shard(name=unit.name, rows=rows, sha256=sha256)
        self.folder.finish(unit, (shard,), began=began)


def translate_shards(
    model: str | Path,
    source: str | Path,
    out: str | Path,
    *,
    place: dict[str, Any] | None = None,
    workers: int = 1,
    progress: bool = True,
    **options: Any,
) -> Path:
    """Translate every file of a folder into a file of the same name, without `.gz`.

    Files that cannot be read are set aside and named in the `DataError` that is raised when all
    others are done.

    Args:
        model: A model folder, or the id of a Hub model.
        source: Folder of text files, plain or gzipped, one text a line.
        out: The folder to write; it appears when it is complete.
        place: Keywords of `load`, such as `{"dtype": "int8", "target_language": "de"}`.
        workers: Processes that each hold the model; more than one need Ray.
        progress: Show a bar on stderr.
        **options: Keywords of `Translator.results_iter`, such as `split` and fields of
            `DecodeConfig`.
    """
    if workers < 1:
        raise ConfigError("workers", f"got {workers}, expected 1 or more")
    source, out = Path(source).resolve(), Path(out)
    asked = _Asked(model_folder(model).resolve(), source, dict(place or {}), options)
    translator = asked.load()
    decode_settings(translator.defaults, _decoding(options))
    units, damaged = _look(source)
    origin = asked.origin()
    if out.exists():
        _check_same(out, origin, units)
        return out
    with open_job(out, origin) as folder:
        work = _Translating(translator, asked, folder) if workers == 1 else None
        del translator  # workers of Ray have their own
        crew = _crew(work, asked, folder, workers)
        finish_units(folder, units, crew, damaged=damaged, stage="translate", progress=progress)
        shards = [shard for unit in units for shard in folder.read(unit).shards]
        summary = {"rows": sum(unit.rows for unit in units), "origin": origin}
        summary["files"] = [
            {**shard.model_dump(include={"name", "rows", "sha256"}), "input_sha256": unit.sha256}
            for unit, shard in zip(units, shards, strict=True)
        ]
        write_json(folder.path / TRANSLATED, summary)
        folder.publish(out)
    return out


def _decoding(options: dict[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in options.items() if key not in ("split", "batch_tokens")}


def _crew(
    work: _Translating | None, asked: _Asked, folder: JobFolder, workers: int
) -> AbstractContextManager[Run]:
    threads, device = asked.place.get("threads") or 1, asked.place.get("device", "auto")
    settled = replace(asked, place={**asked.place, "threads": threads})
    start = partial(start_worker, settled, folder)
    return hired(work, start, workers=workers, threads=threads, device=device)


def start_worker(asked: _Asked, folder: JobFolder) -> _Translating:
    """Load in a process of Ray what the driver loaded, and nothing else."""
    if weights_of(asked.model) != folder.origin["weights"]:
        raise ModelError(f"{asked.model}: was changed while it was at work; run again")
    return _Translating(asked.load(), asked, folder)


def _look(source: Path) -> tuple[list[Unit], dict[str, str]]:
    """Count the lines of all files; return these, and what is wrong with which of them."""
    if not source.is_dir():
        raise DataError(f"{source}: is no folder; put the files to translate into one")
    units: list[Unit] = []
    damaged: dict[str, str] = {}
    first = 0
    for path in _files(source):
        rows = 0
        try:
            with open_lines(path) as lines:
                rows = sum(1 for _ in lines)
        except DataError as error:
            damaged[path.name] = str(error)
        name = path.name.removesuffix(".gz")
        units.append(Unit(name, path.name, rows, first, sha256=file_sha256(path)))
        first += rows
    names = [unit.name for unit in units]
    if own := [name for name in names if is_own(name)]:
        raise DataError(f"{source}: {own[0]} is what a job names files of its own; rename it")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{source}: has {twice[0]} both plain and gzipped; remove one of them")
    return units, damaged


def _files(source: Path) -> Iterator[Path]:
    found = sorted(path for path in source.iterdir() if not path.name.startswith("."))
    files = [path for path in found if path.is_file()]
    if not files:
        raise DataError(f"{source}: has no files; one text a line, plain or gzipped")
    return iter(files)


def _check_same(out: Path, origin: dict[str, Any], units: list[Unit]) -> None:
    """A folder that is there already must be the translation of these files by this model."""
    path = out / TRANSLATED
    if not path.is_file():
        raise DataError(f"{out}: is there already, and no translation; choose another folder")
    summary = read_json(path, error=DataError)
    check_origin(out, summary.get("origin"), origin)
    before = {one["name"]: one["input_sha256"] for one in summary["files"]}
    now = {unit.name: unit.sha256 for unit in units}
    changed = sorted(
        name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
    )
    if changed:
        raise DataError(
            f"{out}: {changed[0]} was translated from another file; remove the folder or choose "
            "another"
        )
