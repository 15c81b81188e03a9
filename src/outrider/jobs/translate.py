"""Translating a folder of text files, on a disk or in a store, each into one of the same name.

Line n of an output is the translation of line n of its input. A finished file counts as long as its
input is what it was; one that was changed, added or mended is translated anew when the command is
given again.
"""

import hashlib
import io
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
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
from outrider.jobs.workers import Run, finish_units, hired
from outrider.runtime.load import load
from outrider.runtime.options import decode_settings
from outrider.runtime.result import format_results
from outrider.runtime.translator import Translator
from outrider.text.language import watched

__all__ = ["translate_shards"]

HEAD_LINES = 100
"""Lines of the first file whose script is looked at."""


@dataclass(frozen=True)
class _Asked:
    """What is asked for; small enough to be sent to workers."""

    model: Path
    source: Place
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
        options = {**self.asked.options, "first": unit.first}  # all files draw as one would
        source, written = open_store(self.asked.source), hashlib.sha256()
        with source.open(unit.input) as raw, self.folder.store.replacing(unit.name) as file:
            lines = Lines(io.BufferedReader(raw), source.show(unit.input))
            texts = (line.decode("utf-8", "replace") for line in lines)
            for rows, results in enumerate(self.translator.results_iter(texts, **options), 1):
                text = format_results(results, rows - 1, n_best=options.get("n_best", 1))
                written.update(text.encode())
                file.write(text)
                advance(1)
            if rows != unit.rows or raw.sha256() != unit.sha256:
                raise DataError(f"{unit.input}: was changed while it was translated; run again")
        shard = Shard(name=unit.name, rows=rows, sha256=written.hexdigest())
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

    Files that cannot be read are set aside and named in the `DataError` that is raised when all
    others are done.

    Args:
        model: A model folder, or the id of a Hub model.
        source: Folder of text files, plain or gzipped, one text a line; a path, or the URL of a
            store, such as `s3://bucket/in`.
        out: The folder to write, a path or a URL. A folder on a disk appears when it is complete,
            one of a store is complete when it holds `translated.json`.
        place: Keywords of `load`, such as `{"dtype": "int8", "target_language": "de"}`.
        workers: Processes that each hold the model; more than one need Ray.
        progress: Show a bar on stderr.
        **options: Keywords of `Translator.results_iter`, such as `split` and fields of
            `DecodeConfig`.
    """
    if workers < 1:
        raise ConfigError("workers", f"got {workers}, expected 1 or more")
    source, out = as_place(source), as_place(out)
    if workers > 1 and "memory" in {str(one).partition("://")[0] for one in (source, out)}:
        raise ConfigError("workers", "memory:// is seen by one process alone; use 1 worker")
    source = source.resolve() if isinstance(source, Path) else source
    asked = _Asked(model_folder(model).resolve(), source, dict(place or {}), options)
    translator = asked.load()
    decode_settings(translator.defaults, _decoding(options))
    units, damaged = _look(open_store(source))
    origin = asked.origin()
    if _is_there(open_store(out), origin, units):
        return out
    _check_script(open_store(source), units, translator.reads)
    with open_job(out, origin) as folder:
        work = _Translating(translator, asked, folder) if workers == 1 else None
        del translator  # workers of Ray have their own
        crew = _crew(work, asked, folder, workers)
        finish_units(folder, units, crew, damaged=damaged, stage="translate", progress=progress)
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
    """Warn if the first file is in a script that the languages do not use."""
    first = next((unit.input for unit in units if unit.rows), None)
    if first is not None and languages:
        with source.open(first) as raw:
            lines = islice(Lines(io.BufferedReader(raw), source.show(first)), HEAD_LINES)
            deque(watched((line.decode("utf-8", "replace") for line in lines), languages), 0)


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


def _look(source: Store) -> tuple[list[Unit], dict[str, str]]:
    """Count the lines of all files; return these, and what is wrong with which of them."""
    files = _files(source)
    units: list[Unit] = []
    damaged: dict[str, str] = {}
    first = 0
    looks = source.each(lambda name: look_at(source, name), files)
    for file, (rows, sha256, fault) in zip(files, looks, strict=True):
        if fault:
            damaged[file] = fault
        units.append(Unit(file.removesuffix(".gz"), file, rows, first, sha256=sha256))
        first += rows
    names = [unit.name for unit in units]
    if own := [name for name in names if is_own(name)]:
        raise DataError(f"{source}: {own[0]} is what a job names files of its own; rename it")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{source}: has {twice[0]} both plain and gzipped; remove one of them")
    return units, damaged


def _files(source: Store) -> list[str]:
    files = [name for name in source.names() if not name.startswith(".")]
    if not files:
        raise DataError(f"{source}: has no files; one text a line, plain or gzipped")
    return files


def _is_there(out: Store, origin: dict[str, Any], units: list[Unit]) -> bool:
    """Whether all is done; a folder that is there must be the translation of these files."""
    if not out.exists():
        return False
    if not out.has(TRANSLATED):
        if isinstance(out.place, str) and {ORIGIN, LOCK} & set(out.names()):
            return False  # begun: a store has no other place for it
        raise DataError(f"{out}: is there already, and no translation; choose another folder")
    summary = out.read_json(TRANSLATED)
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
    if isinstance(out.place, str) and out.has(ORIGIN):  # killed when all was done
        remove_records(out)
    return True
