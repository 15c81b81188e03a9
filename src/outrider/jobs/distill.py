"""Distillation: a corpus whose targets are what a model itself says (Kim and Rush, 2016).

    y = greedy(model, x)        for every source x of a prepared folder

A drafter has to predict its target, and a parallel decoder learns best where a source has one
translation: both train on such a folder. Each block of rows becomes one shard. Finished shards are
kept in `<folder>.partial`, so a run that was killed goes on with those that are missing.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from outrider import __version__
from outrider.data.manifest import Dropped, Manifest, Split, read_manifest
from outrider.data.prepared import Prepared, open_prepared
from outrider.data.shards import BlockReader, ShardWriter
from outrider.decoding import DecodeConfig
from outrider.errors import ConfigError, DataError, ModelError
from outrider.files import check_on_disk, file_sha256
from outrider.files.hub import model_folder
from outrider.formats.folder import weights_of
from outrider.jobs.folder import Advance, JobFolder, Unit, check_origin, open_job
from outrider.jobs.teacher import SOURCE_COLUMNS, Teacher
from outrider.jobs.workers import Run, finish_units, hired
from outrider.runtime.generator import Generator
from outrider.runtime.load import load
from outrider.runtime.options import check_batch_tokens, decode_config
from outrider.runtime.translator import Translator
from outrider.text.tokenizer.vocabulary import check_same_tokenizer

__all__ = ["DISTILL_TOKENS", "Block", "Distillation", "blocks", "distill", "start_worker"]

DISTILL_TOKENS = 32_768
"""Tokens held in memory at once; more is no faster on a CPU."""


@dataclass(frozen=True)
class Block(Unit):
    """A row group of a prepared split."""

    split: str
    block: int


@dataclass(frozen=True)
class Distillation:
    """What is asked for; small enough to be sent to workers."""

    model: str | Path
    data: Path
    consensus: bool = False
    min_score: float | None = None
    batch_tokens: int = DISTILL_TOKENS
    device: str = "auto"
    dtype: str = "float32"
    threads: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def prepared(self) -> Prepared:
        """The corpus; its files are looked at one by one."""
        return Prepared(self.data, read_manifest(self.data))

    def load(self) -> tuple[Teacher, DecodeConfig]:
        """Load the model and check that it fits the corpus and what is asked of it."""
        loaded = load(self.model, device=self.device, dtype=self.dtype, threads=self.threads)
        prepared, options = self.prepared, self.options
        _check_task(loaded, prepared, self.model)
        check_same_tokenizer(
            prepared.tokenizer, loaded.tokenizer, data=prepared.folder, model=self.model
        )
        if self.min_score is not None:
            if not isinstance(loaded, Translator):
                raise ConfigError("min_score", "is for translations; a language model only goes on")
            options = {**options, "scores": True}
        config = decode_config({**loaded.defaults, **options})
        if self.consensus and config.n_best == 1:
            raise ConfigError(
                "n_best", "is 1, and a single answer agrees with itself; ask for more"
            )
        teacher = Teacher(
            loaded,
            config.settings,
            check_batch_tokens(self.batch_tokens),
            longest=int(prepared.manifest.config["clean"]["max_tokens"]),
            consensus=self.consensus,
            min_score=self.min_score,
        )
        return teacher, config

    def origin(self, config: DecodeConfig, rows: int | None) -> dict[str, Any]:
        """All that the output depends on, and under which name the model was asked for."""
        decode = {"strategy": config.strategy, **config.model_dump(exclude_defaults=True)}
        if self.consensus:
            decode["choose"] = "consensus"
        if self.min_score is not None:
            decode["min_score"] = self.min_score
        return {
            "model": str(self.model),
            "weights": weights_of(model_folder(self.model)),
            "decode": decode,
            "dtype": self.dtype,
            "data": file_sha256(self.data / "manifest.json"),
            "rows": rows,
            "outrider": __version__,
        }


@dataclass(frozen=True)
class _Distiller:
    """Reads a block, lets the teacher answer it, writes a shard."""

    teacher: Teacher
    prepared: Prepared
    folder: JobFolder

    @cached_property
    def _readers(self) -> dict[str, BlockReader]:
        return {split: self.prepared.reader(split) for split in self.prepared.manifest.splits}

    def __call__(self, unit: Unit, advance: Advance) -> None:
        assert isinstance(unit, Block)
        if self.folder.is_done(unit):  # by a worker that ended before it could say so
            return
        began, size = time.monotonic(), self.prepared.manifest.block_rows
        table = self._readers[unit.split].table(unit.block, [*SOURCE_COLUMNS, "target_ids"])
        found = self.teacher(table.slice(0, unit.rows), unit, advance)
        writer = ShardWriter(
            self.folder.path, unit.split, shard_rows=size, block_rows=size, first=unit.block
        )
        with writer:
            if found.table.num_rows:
                writer.add(found.table)
            shards = writer.close()
        self.folder.finish(unit, shards, found.dropped, began=began)


def start_worker(asked: Distillation, folder: JobFolder) -> _Distiller:
    """Load in a process of Ray what the driver loaded, and nothing else."""
    if weights_of(model_folder(asked.model)) != folder.origin["weights"]:
        raise ModelError(f"{asked.model}: was changed while it was at work; run again")
    return _Distiller(asked.load()[0], asked.prepared, folder)


def distill(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    rows: int | None = None,
    consensus: bool = False,
    min_score: float | None = None,
    batch_tokens: int = DISTILL_TOKENS,
    device: str = "auto",
    dtype: str = "float32",
    threads: int | None = None,
    workers: int = 1,
    progress: bool = True,
    **options: Any,
) -> Prepared:
    """Write a prepared folder whose targets are the exact tokens that `model` generates.

    A translator answers every source. A language model is given the first half of every row and
    goes on to its full length. A shard of `data` that is damaged is set aside and named in the
    `DataError` that is raised when all others are done.

    Args:
        model: A model folder, or the id of a Hub model.
        data: A prepared folder with the tokenizer of the model.
        out: The folder to write; it appears when it is complete.
        rows: Take only this many rows of each split.
        consensus: Of several answers (`n_best`) take not the likeliest, but the one that the others
            are most like, by chrF.
        min_score: Leave out translations whose tokens have a lower mean log-probability.
        batch_tokens: Bound on the tokens held in memory at once.
        device: Where to compute, as in `load`.
        dtype: float32, bfloat16, float16, or int8 on the native core.
        threads: CPU threads; of each worker, by default one, where there are several.
        workers: Processes that each hold the model; more than one need Ray.
        progress: Show a bar on stderr.
        **options: Fields of `DecodeConfig`, such as `temperature=0.8`; by default greedy.
    """
    for key, number in (("rows", rows), ("workers", workers)):
        if number is not None and number < 1:
            raise ConfigError(key, f"got {number}, expected 1 or more")
    for key, where in (("data", data), ("out", out)):
        check_on_disk(key, where, "a prepared folder is on a disk; mount the store, or copy it")
    asked = Distillation(
        model,
        Path(data),
        consensus,
        min_score,
        batch_tokens,
        device,
        dtype,
        threads,
        options,
    )
    out, prepared = Path(out), asked.prepared
    damaged = prepared.damaged()
    teacher, config = asked.load()
    origin = asked.origin(config, rows)
    if out.exists():
        check_origin(out, read_manifest(out).origin, origin)
        return Prepared(out, read_manifest(out), reused=True)
    with open_job(out, origin) as folder:
        work = _Distiller(teacher, prepared, folder) if workers == 1 else None
        del teacher  # workers of Ray have their own
        crew = _crew(work, asked, folder, workers)
        units = {split: blocks(prepared, split, rows) for split in prepared.manifest.splits}
        finish_units(
            folder,
            [unit for some in units.values() for unit in some],
            crew,
            damaged=damaged,
            stage="distil",
            progress=progress,
        )
        _finish(folder, out, prepared, units)
    return open_prepared(out)


def _crew(
    work: _Distiller | None, asked: Distillation, folder: JobFolder, workers: int
) -> AbstractContextManager[Run]:
    """Workers find the same files from wherever they run."""
    threads, model = asked.threads or 1, model_folder(asked.model).resolve()
    settled = replace(asked, model=model, data=asked.data.resolve(), threads=threads)
    start = partial(start_worker, settled, folder)
    return hired(work, start, workers=workers, threads=threads, device=asked.device)


def blocks(prepared: Prepared, split: str, limit: int | None) -> list[Block]:
    """Return the units of a split, or of its first `limit` rows."""
    units, first, reader = [], 0, prepared.reader(split)
    for block, rows in enumerate(reader.block_rows.tolist()):
        kept = rows if limit is None else min(rows, limit - first)
        if kept > 0:
            name = f"{split}-{block:05d}"
            units.append(Block(name, reader.file(block), kept, first, split, block))
        first += rows
    return units


def _finish(
    folder: JobFolder, out: Path, prepared: Prepared, units: Mapping[str, Sequence[Unit]]
) -> None:
    splits = {split: _read_split(folder, some) for split, some in units.items()}
    prepared.tokenizer.save(folder.path)
    manifest = prepared.manifest
    Manifest(
        task=manifest.task,
        config=manifest.config,
        inputs=manifest.inputs,
        tokenizer=manifest.tokenizer,
        block_rows=manifest.block_rows,
        splits=splits,
        origin=folder.origin,
    ).write(folder.path)
    folder.publish(out)


def _read_split(folder: JobFolder, units: Sequence[Unit]) -> Split:
    parts = [folder.read(unit) for unit in units]
    shards = tuple(shard for part in parts for shard in part.shards)
    dropped: dict[str, Dropped] = {}
    for part in parts:
        for reason, more in part.dropped.items():
            before = dropped.get(reason, Dropped(count=0, example=more.example))
            dropped[reason] = Dropped(count=before.count + more.count, example=before.example)
    if not shards:
        why = ", ".join(f"{reason}: {one.count}" for reason, one in dropped.items())
        raise DataError(f"{folder.path}: no answer of the model is left ({why}); is it trained?")
    return Split(shards=shards, rows_read=sum(part.rows_read for part in parts), dropped=dropped)


def _check_task(loaded: Translator | Generator, prepared: Prepared, model: str | Path) -> None:
    task = "translation" if isinstance(loaded, Translator) else "language_model"
    if prepared.manifest.task != task:
        kind = "an encoder-decoder" if task == "translation" else "a language model"
        raise DataError(
            f"{prepared.folder}: was prepared for {prepared.manifest.task}, but {model} is {kind}"
        )
