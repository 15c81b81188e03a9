"""Distillation: a corpus whose targets are what a model itself says (Kim and Rush, 2016).

    y = greedy(model, x)        for every source x of a prepared folder

A drafter has to predict its target, and a parallel decoder learns best where a source has one
translation: both train on such a folder. Each block of rows becomes one shard. Finished shards are
kept in `<folder>.partial`, so a run that was killed goes on at the first one that is missing.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from outrider import __version__
from outrider.data.manifest import Dropped, Manifest, Shard, Split, read_manifest
from outrider.data.prepared import Prepared, open_prepared
from outrider.data.progress import show_stages
from outrider.data.shards import ShardWriter, ragged_column
from outrider.data.tokenizer.match import check_same_tokenizer
from outrider.decoding import DecodeConfig, DecodeSettings, Hypothesis, Request
from outrider.errors import ConfigError, DataError, ResourceError
from outrider.files import (
    explained,
    file_sha256,
    locked,
    publish,
    read_json,
    write_json,
    write_text,
)
from outrider.formats.folder import model_files
from outrider.hub import model_folder
from outrider.runtime.batches import decode_in_batches
from outrider.runtime.consensus import choose_by_consensus
from outrider.runtime.generator import Generator
from outrider.runtime.load import load
from outrider.runtime.options import check_batch_tokens, decode_config
from outrider.runtime.translator import Translator

__all__ = ["DISTILL_TOKENS", "distill", "weights_of"]

DISTILL_TOKENS = 32_768
"""Tokens held in memory at once; more is no faster on a CPU."""
CHUNK_ROWS = 2048
"""Rows of a block that are decoded between two moves of the progress bar."""

SOURCE_COLUMNS = ["source", "source_ids", "source_length"]
ENDLESS = "did not end within the length limit"
TOO_LONG = "longer than the model can take"
UNSURE = "the model was not sure of it"

Advance = Callable[[int], None]


@dataclass(frozen=True)
class _Unit:
    """One block of a split, the work between two shards."""

    split: str
    block: int
    first: int
    """Row of the split that it begins with."""
    rows: int

    @property
    def name(self) -> str:
        return f"{self.split}-{self.block:05d}"


@dataclass(frozen=True)
class _Rows:
    """What a model said to the rows of a block."""

    table: pa.Table
    dropped: dict[str, Dropped]


@dataclass(frozen=True)
class _Teacher:
    """A model that answers the rows of a block."""

    loaded: Translator | Generator
    config: DecodeSettings
    batch_tokens: int
    longest: int
    """Most tokens an answer may have."""
    consensus: bool = False
    """Whether, of several answers, that is taken which the others are most like."""
    min_score: float | None = None
    """Mean log-probability of a token below which an answer is left out."""

    def __call__(self, table: pa.Table, unit: _Unit, advance: Advance) -> _Rows:
        """Answer all rows; `advance` is told how many are done."""
        if isinstance(self.loaded, Translator):
            return self._translate(self.loaded, table, unit, advance)
        return self._continue(table, unit, advance)

    def _translate(
        self, translator: Translator, table: pa.Table, unit: _Unit, advance: Advance
    ) -> _Rows:
        """Translate every source; what is too long or does not end is left out."""
        sources = [row.tolist() for row in table["source_ids"].to_numpy()]
        short = [n for n, ids in enumerate(sources) if len(ids) < translator.longest]
        requests = [self._request(translator, sources[n], unit.first + n) for n in short]
        advance(len(sources) - len(short))
        answers = dict(zip(short, self._decode(requests, advance), strict=True))
        ended = [n for n, answer in answers.items() if answer.finish == "eos"]
        kept = [n for n in ended if self._is_sure(answers[n])]
        dropped = {
            TOO_LONG: [n for n in range(len(sources)) if n not in answers],
            ENDLESS: [n for n, answer in answers.items() if answer.finish != "eos"],
            UNSURE: sorted({*ended} - {*kept}),
        }
        rows = table.select(SOURCE_COLUMNS).take(pa.array(kept, pa.int64()))
        return _Rows(
            self._with_targets(rows, [answers[n].tokens for n in kept]),
            {why: _dropped(unit, table, left) for why, left in dropped.items() if left},
        )

    def _continue(self, table: pa.Table, unit: _Unit, advance: Advance) -> _Rows:
        """Go on from the first half of every row to the row's full length."""
        loaded = self.loaded
        assert isinstance(loaded, Generator)
        rows = [row.tolist() for row in table["target_ids"].to_numpy()]
        requests = [
            loaded.request(
                ids[: len(ids) // 2],
                max_new_tokens=len(ids) - len(ids) // 2,
                seed=self.config.seed + unit.first + n,
            )
            for n, ids in enumerate(rows)
        ]
        answers = self._decode(requests, advance)
        ends = [[loaded.backend.eos] * (answer.finish == "eos") for answer in answers]
        targets = [
            [*loaded.prompt_ids(request), *answer.tokens, *end]
            for request, answer, end in zip(requests, answers, ends, strict=True)
        ]
        return _Rows(self._with_targets(table.select([]), targets), {})

    def _request(self, translator: Translator, source: list[int], row: int) -> Request:
        """Ask as `Translator` does, but for no more than a corpus row may hold."""
        limit = self.config.max_new_tokens or 3 * len(source) + 30
        return translator.request(
            source, max_new_tokens=min(limit, self.longest + 1), seed=self.config.seed + row
        )

    def _decode(self, requests: Sequence[Request], advance: Advance) -> list[Hypothesis]:
        """One hypothesis per request, in order; alike lengths are decoded together."""
        order = sorted(range(len(requests)), key=lambda row: -_length(requests[row]))
        found: dict[int, Hypothesis] = {}
        for start in range(0, len(order), CHUNK_ROWS):
            rows = order[start : start + CHUNK_ROWS]
            answers = decode_in_batches(
                self.loaded.backend,
                [requests[row] for row in rows],
                self.config,
                batch_tokens=self.batch_tokens,
            )
            found |= {row: self._choose(some) for row, some in zip(rows, answers, strict=True)}
            advance(len(rows))
        return [found[row] for row in range(len(requests))]

    def _is_sure(self, answer: Hypothesis) -> bool:
        if self.min_score is None:
            return True
        assert answer.score is not None
        # Of several drawn texts each has the mean; one has the sum, a beam's is divided already.
        count = len(answer.tokens) + 1  # with the end token
        divided = self.config.length_penalty if self.config.strategy == "beam" else 0.0
        if self.config.candidates > 1:
            divided = 1.0
        return answer.score * count ** (divided - 1) >= self.min_score

    def _choose(self, answers: Sequence[Hypothesis]) -> Hypothesis:
        """Take one of several answers; those that did not end are no answers where others did."""
        ended = [answer for answer in answers if answer.finish == "eos"]
        if not self.consensus or not ended:
            return answers[0]
        texts = self.loaded.tokenizer.decode_batch([answer.tokens for answer in ended])
        return ended[choose_by_consensus(texts)]

    def _with_targets(self, table: pa.Table, targets: Sequence[Sequence[int]]) -> pa.Table:
        texts = self.loaded.tokenizer.decode_batch(targets)
        if isinstance(self.loaded, Translator):
            texts = [text.strip() for text in texts]
        columns = {name: table[name] for name in table.column_names}
        columns["target"] = pa.array(texts, pa.string())
        columns["target_ids"] = ragged_column(targets)
        columns["target_length"] = pa.array([len(ids) for ids in targets], pa.int32())
        return pa.table(columns)


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
    progress: bool = True,
    **options: Any,
) -> Prepared:
    """Write a prepared folder whose targets are the exact tokens that `model` generates.

    A translator answers every source. A language model is given the first half of every row and
    goes on to its full length.

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
        threads: CPU threads.
        progress: Show a bar for each split on stderr.
        **options: Fields of `DecodeConfig`, such as `temperature=0.8`; by default greedy.
    """
    out, prepared = Path(out), open_prepared(data, verify=True)
    if rows is not None and rows < 1:
        raise ConfigError("rows", f"got {rows}, expected 1 or more")
    loaded = load(model, device=device, dtype=dtype, threads=threads)
    _check_task(loaded, prepared, model)
    check_same_tokenizer(prepared.tokenizer, loaded.tokenizer, data=prepared.folder, model=model)
    if min_score is not None:
        if not isinstance(loaded, Translator):
            raise ConfigError("min_score", "is for translations; a language model only goes on")
        options["scores"] = True
    config = decode_config({**loaded.defaults, **options})
    if consensus and config.n_best == 1:
        raise ConfigError("n_best", "is 1, and a single answer agrees with itself; ask for more")
    origin = _origin(model, prepared, config, dtype=dtype, rows=rows)
    if consensus:
        origin["decode"]["choose"] = "consensus"
    if min_score is not None:
        origin["decode"]["min_score"] = min_score
    if out.exists():
        _check_origin(out, read_manifest(out).origin, origin)
        return Prepared(out, read_manifest(out), reused=True)
    longest = int(prepared.manifest.config["clean"]["max_tokens"])
    teacher = _Teacher(
        loaded, config.settings, check_batch_tokens(batch_tokens), longest, consensus, min_score
    )
    with _partial(out, origin) as work:
        splits = _distill_splits(teacher, prepared, work, rows=rows, progress=progress)
        _finish(work, out, prepared, splits, origin)
    return open_prepared(out)


def _distill_splits(
    teacher: _Teacher, prepared: Prepared, work: Path, *, rows: int | None, progress: bool
) -> dict[str, Split]:
    splits = {}
    with show_stages(progress) as stages:
        for name in prepared.manifest.splits:
            reader, units = prepared.reader(name), _units(prepared, name, rows)
            missing = [unit for unit in units if not _is_done(work, unit)]
            if missing:
                advance = stages.start(f"distil {name}", sum(unit.rows for unit in missing))
            for unit in missing:
                table = reader.table(unit.block, [*SOURCE_COLUMNS, "target_ids"])
                found = teacher(table.slice(0, unit.rows), unit, advance)
                _write(work, unit, found, prepared.manifest.block_rows)
            splits[name] = _read_split(work, units)
    return splits


def _units(prepared: Prepared, split: str, limit: int | None) -> list[_Unit]:
    units, first = [], 0
    for block, rows in enumerate(prepared.reader(split).block_rows.tolist()):
        kept = rows if limit is None else min(rows, limit - first)
        if kept > 0:
            units.append(_Unit(split, block, first, kept))
        first += rows
    return units


def _dropped(unit: _Unit, table: pa.Table, rows: Sequence[int]) -> Dropped:
    text = table["source"][rows[0]].as_py()[:80]
    return Dropped(count=len(rows), example=f"{unit.split} row {unit.first + rows[0] + 1}: {text}")


def _length(request: Request) -> int:
    return len(request.source) + len(request.prompt)


# --- what lies on the disk ----------------------------------------------------------------------


def _write(work: Path, unit: _Unit, found: _Rows, block_rows: int) -> None:
    """Write a shard, and then the record that makes it count."""
    writer = ShardWriter(
        work, unit.split, shard_rows=block_rows, block_rows=block_rows, first=unit.block
    )
    with writer:
        if found.table.num_rows:
            writer.add(found.table)
        shards = writer.close()
    split = Split(shards=shards, rows_read=unit.rows, dropped=found.dropped)
    write_text(_record(work, unit), split.model_dump_json() + "\n")


def _is_done(work: Path, unit: _Unit) -> bool:
    """Whether a shard was finished, and is still what was written."""
    try:
        shards = _read_record(work, unit).shards
        return all(file_sha256(work / shard.name) == shard.sha256 for shard in shards)
    except (DataError, OSError):
        return False


def _read_record(work: Path, unit: _Unit) -> Split:
    path = _record(work, unit)
    try:
        return Split.model_validate(read_json(path, error=DataError))
    except ValidationError:
        raise DataError(f"{path}: damaged; start again to write it anew") from None


def _read_split(work: Path, units: Sequence[_Unit]) -> Split:
    parts = [_read_record(work, unit) for unit in units]
    shards: list[Shard] = [shard for part in parts for shard in part.shards]
    dropped: dict[str, Dropped] = {}
    for part in parts:
        for reason, more in part.dropped.items():
            before = dropped.get(reason, Dropped(count=0, example=more.example))
            dropped[reason] = Dropped(count=before.count + more.count, example=before.example)
    if not shards:
        why = ", ".join(f"{reason}: {one.count}" for reason, one in dropped.items())
        raise DataError(f"{work}: no answer of the model is left ({why}); is it trained?")
    return Split(
        shards=tuple(shards), rows_read=sum(part.rows_read for part in parts), dropped=dropped
    )


def _finish(
    work: Path, out: Path, prepared: Prepared, splits: dict[str, Split], origin: dict[str, Any]
) -> None:
    prepared.tokenizer.save(work)
    manifest = prepared.manifest
    Manifest(
        task=manifest.task,
        config=manifest.config,
        inputs=manifest.inputs,
        tokenizer=manifest.tokenizer,
        block_rows=manifest.block_rows,
        splits=splits,
        origin=origin,
    ).write(work)
    publish(work, out)
    # Only now: killed before, a run still knows which shards are finished.
    for path in [*out.glob("*.done.json"), out / "origin.json", out / ".lock"]:
        path.unlink(missing_ok=True)


@contextmanager
def _partial(out: Path, origin: dict[str, Any]) -> Iterator[Path]:
    """Open the folder of finished shards, if it was begun in the same way, or a new one."""
    work = out.with_name(f"{out.name}.partial")
    busy = DataError(f"{work}: another process is distilling into it; wait for it")
    kept = f"finished shards are kept in {work}"
    try:
        with explained(out, kept):
            work.mkdir(parents=True, exist_ok=True)
            with locked(work / ".lock", busy):
                _begin(work, origin)
                yield work
    except ResourceError as error:
        raise error if kept in str(error) else ResourceError(f"{error}; {kept}") from None


def _begin(work: Path, origin: dict[str, Any]) -> None:
    begun = work / "origin.json"
    if begun.is_file():
        _check_origin(work, read_json(begun, error=DataError), origin)
    else:
        write_json(begun, origin)
    for leftover in work.glob("*.tmp"):
        leftover.unlink()


def _record(work: Path, unit: _Unit) -> Path:
    return work / f"{unit.name}.done.json"


# --- where it comes from ------------------------------------------------------------------------


def _origin(
    model: str | Path, prepared: Prepared, config: DecodeConfig, *, dtype: str, rows: int | None
) -> dict[str, Any]:
    """All that the output depends on, and under which name the model was asked for."""
    return {
        "model": str(model),
        "weights": weights_of(model_folder(model)),
        "decode": {"strategy": config.strategy, **config.model_dump(exclude_defaults=True)},
        "dtype": dtype,
        "data": file_sha256(prepared.folder / "manifest.json"),
        "rows": rows,
        "outrider": __version__,
    }


def weights_of(folder: Path) -> dict[str, str]:
    """Checksums of the weights of a model, which say exactly which model it is."""
    return {path.name: file_sha256(path) for path in model_files(folder) if path.is_file()}


def _check_origin(folder: Path, found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> None:
    """What was begun with one model cannot be gone on with by another."""
    before, now = json.loads(json.dumps([found or {}, wanted]))
    for key in ("weights", "decode", "dtype", "data", "rows"):
        if before.get(key) != now.get(key):
            raise DataError(
                f"{folder}: was distilled differently ({key} was {_show(before.get(key))}, is now "
                f"{_show(now.get(key))}); remove it or choose another folder"
            )


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:57]}..."


def _check_task(loaded: Translator | Generator, prepared: Prepared, model: str | Path) -> None:
    task = "translation" if isinstance(loaded, Translator) else "language_model"
    if prepared.manifest.task != task:
        kind = "an encoder-decoder" if task == "translation" else "a language model"
        raise DataError(
            f"{prepared.folder}: was prepared for {prepared.manifest.task}, but {model} is {kind}"
        )
