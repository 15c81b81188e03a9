"""Translation of a folder of text files, on disk or in an object store.

Each file is translated to a file of the same name; line n of an output is the translation of line n
of its input. Running the command again translates new and changed files only.
"""

import hashlib
import io
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from outrider import __version__
from outrider.data.lines import Lines
from outrider.data.manifest import Shard
from outrider.errors import ConfigError, DataError, ModelError
from outrider.files import Place, Store, as_place, open_store
from outrider.files.hub import model_folder
from outrider.formats.folder import weights_of
from outrider.jobs.folder import (
    LOCK,
    ORIGIN,
    TRANSLATED,
    Advance,
    JobFolder,
    Unit,
    check_origin,
    is_own,
    open_job,
    remove_records,
)
from outrider.jobs.text_file import look_at
from outrider.jobs.workers import finish_units, runner
from outrider.runtime.load import load
from outrider.runtime.options import decode_settings
from outrider.runtime.result import format_results
from outrider.runtime.translator import Translator
from outrider.text.language import watched

OTHER_OPTIONS = "split", "batch_tokens", "guard"
"""Options of `Translator.results_iter` that are no decode options."""
HEAD_LINES = 100
"""Lines of the first file whose script is checked."""


@dataclass(frozen=True)
class _Job:
    """The arguments of a job, sent to workers."""

    model: Path
    source: Place
    place: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `load`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `Translator.results_iter`."""

    def load(self) -> Translator:
        loaded = load(self.model, **self.place)
        if not isinstance(loaded, Translator):
            raise ModelError(f"{self.model}: is a language model; use outrider generate")
        return loaded

    def work(self, folder: JobFolder) -> "_TranslateFile":
        return _TranslateFile(self.load(), self, folder)

    def origin(self) -> dict[str, Any]:
        """Return everything that determines the output except the files."""
        decode = {**self.options, **{key: self.place[key] for key in sorted(self.place)}}
        for key in ("device", "threads", "batch_tokens"):  # no effect on the output
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
class _TranslateFile:
    """Translates one file."""

    translator: Translator
    job: _Job
    folder: JobFolder

    def __call__(self, unit: Unit, advance: Advance) -> None:
        if self.folder.is_done(unit):  # by a worker that was killed before it returned
            return
        began, rows = time.monotonic(), 0
        options = {**self.job.options, "first": unit.first}  # seeds as for a single file
        source, digest = open_store(self.job.source), hashlib.sha256()
        with source.open(unit.input) as raw, self.folder.store.replacing(unit.name) as file:
            lines = Lines(io.BufferedReader(raw), source.show(unit.input))
            texts = (line.decode("utf-8", "replace") for line in lines)
            for rows, results in enumerate(self.translator.results_iter(texts, **options), 1):
                text = format_results(results, rows - 1, n_best=options.get("n_best", 1))
                digest.update(text.encode())
                file.write(text)
                advance(1)
            if rows != unit.rows or raw.sha256() != unit.sha256:
                raise DataError(f"{unit.input}: changed while it was translated; run again")
        shard = Shard(name=unit.name, rows=rows, sha256=digest.hexdigest())
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
) -> Place:
    """Translate every file of a folder into a file of the same name, without `.gz`.

    Unreadable files raise a `DataError` after all others are finished.

    Args:
        model: A model folder, or the id of a Hub model.
        source: Folder of text files, plain or gzipped, one text per line; a path, or the URL of
            an object store, such as `s3://bucket/in`.
        out: The folder to write, a path or a URL. A folder on disk is created when it is complete;
            one in a store is complete when it contains `translated.json`.
        place: Keyword arguments of `load`, such as `{"dtype": "int8", "target_language": "de"}`.
        workers: Processes that each load the model; more than one need Ray.
        progress: Show a progress bar.
        **options: Keyword arguments of `Translator.results_iter`, such as `split` and fields of
            `DecodeConfig`.
    """
    if workers < 1:
        raise ConfigError("workers", f"got {workers}, expected 1 or more")
    source, out = as_place(source), as_place(out)
    if workers > 1 and "memory" in {str(path).partition("://")[0] for path in (source, out)}:
        raise ConfigError("workers", "memory:// exists in one process only; use 1 worker")
    source = source.resolve() if isinstance(source, Path) else source
    job = _Job(model_folder(model).resolve(), source, dict(place or {}), options)
    translator = job.load()
    decode_settings(translator.defaults, _decoding(options))
    units, damaged = _list_units(open_store(source))
    origin = job.origin()
    if _is_finished(open_store(out), origin, units):
        return out
    _check_script(open_store(source), units, translator.reads)
    with open_job(out, origin) as folder:
        work = _TranslateFile(translator, job, folder) if workers == 1 else None
        del translator  # Ray workers load their own
        threads, device = job.place.get("threads") or 1, job.place.get("device", "auto")
        worker_job = replace(job, place={**job.place, "threads": threads})
        run = runner(work, worker_job, folder, workers=workers, threads=threads, device=device)
        finish_units(folder, units, run, damaged=damaged, stage="translate", progress=progress)
        records = folder.store.each(folder.read, units)
        shards = [shard for record in records for shard in record.shards]
        summary = {"rows": sum(unit.rows for unit in units), "origin": origin}
        summary["files"] = [
            {**shard.model_dump(include={"name", "rows", "sha256"}), "input_sha256": unit.sha256}
            for unit, shard in zip(units, shards, strict=True)
        ]
        folder.store.write_json(TRANSLATED, summary)
        folder.publish(out)
    return out


def _check_script(source: Store, units: list[Unit], languages: Sequence[str]) -> None:
    """Warn if the script of the first file does not fit the source languages."""
    first = next((unit.input for unit in units if unit.rows), None)
    if first is not None and languages:
        with source.open(first) as raw:
            lines = islice(Lines(io.BufferedReader(raw), source.show(first)), HEAD_LINES)
            deque(watched((line.decode("utf-8", "replace") for line in lines), languages), 0)


def _decoding(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in OTHER_OPTIONS}


def _list_units(source: Store) -> tuple[list[Unit], dict[str, str]]:
    """Return a unit for each file, and the faults of damaged files by name."""
    files = _files(source)
    units: list[Unit] = []
    damaged: dict[str, str] = {}
    first = 0
    inspected = source.each(lambda name: look_at(source, name), files)
    for file, (rows, sha256, fault) in zip(files, inspected, strict=True):
        if fault:
            damaged[file] = fault
        units.append(Unit(file.removesuffix(".gz"), file, rows, first, sha256=sha256))
        first += rows
    names = [unit.name for unit in units]
    if own := [name for name in names if is_own(name)]:
        raise DataError(f"{source}: {own[0]} is a name that jobs reserve; rename it")
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{source}: has {duplicates[0]} both plain and gzipped; remove one")
    return units, damaged


def _files(source: Store) -> list[str]:
    files = [name for name in source.names() if not name.startswith(".")]
    if not files:
        raise DataError(f"{source}: has no files; expected one text per line, plain or gzipped")
    return files


def _is_finished(out: Store, origin: dict[str, Any], units: list[Unit]) -> bool:
    """Whether the output is complete; refuse an output of other files or options."""
    if not out.exists():
        return False
    if not out.has(TRANSLATED):
        if isinstance(out.place, str) and {ORIGIN, LOCK} & set(out.names()):
            return False  # begun: a store has no separate .partial folder
        raise DataError(f"{out}: exists and is not a translation; choose another folder")
    summary = out.read_json(TRANSLATED)
    check_origin(out, summary.get("origin"), origin)
    before = {file["name"]: file["input_sha256"] for file in summary["files"]}
    now = {unit.name: unit.sha256 for unit in units}
    changed = sorted(
        name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
    )
    if changed:
        raise DataError(
            f"{out}: {changed[0]} was translated from another file; remove the folder or choose "
            "another"
        )
    if isinstance(out.place, str) and out.has(ORIGIN):  # killed after the last file
        remove_records(out)
    return True
