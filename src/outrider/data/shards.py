"""Parquet shards, written atomically and read in blocks.

A shard is a file, and a block is one of its row groups. A shard is written under a temporary name,
synced, renamed and identified by its sha256. Readers load the needed columns of single blocks as
flat arrays without a Python object per row. A `Spool` stores cleaned text between reading and
encoding, while the tokenizer is trained.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from outrider.data.manifest import Shard
from outrider.errors import DataError
from outrider.files import file_sha256

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths; row i is flat[offsets[i] : offsets[i + 1]]."""

    flat: NDArray[np.int32]
    offsets: IntArray

    @property
    def lengths(self) -> IntArray:
        """Length of each row."""
        return np.diff(self.offsets)


class ShardWriter(AbstractContextManager["ShardWriter"]):
    """Collects rows and writes them as `<split>-00000.parquet`, `<split>-00001.parquet`, ...

    Leaving its context without `close` discards the unfinished shard.
    """

    def __init__(
        self, folder: Path, split: str, *, shard_rows: int, block_rows: int, first: int = 0
    ) -> None:
        """Write to `folder`; `first` is the number of the first shard."""
        self._folder, self._split, self._first = folder, split, first
        self._shard_rows, self._block_rows = shard_rows, block_rows
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._open: _OpenShard | None = None
        self._shards: list[Shard] = []

    def add(self, table: pa.Table) -> None:
        """Append rows; full blocks are written."""
        self._pending.append(table)
        self._pending_rows += table.num_rows
        while self._pending_rows >= self._next_block_rows():
            self._write_block(self._next_block_rows())

    def close(self) -> tuple[Shard, ...]:
        """Write the pending rows and return all shards."""
        if self._pending_rows:
            self._write_block(self._pending_rows)
        if self._open is not None:
            self._shards.append(self._open.close())
            self._open = None
        return tuple(self._shards)

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.discard()

    def _next_block_rows(self) -> int:
        written = self._open.rows if self._open is not None else 0
        return min(self._block_rows, self._shard_rows - written)

    def _write_block(self, rows: int) -> None:
        pending = pa.concat_tables(self._pending)
        block, rest = pending.slice(0, rows), pending.slice(rows)
        self._pending, self._pending_rows = [rest], rest.num_rows
        if self._open is None:
            number = self._first + len(self._shards)
            path = self._folder / f"{self._split}-{number:05d}.parquet"
            self._open = _OpenShard(path, block.schema)
        self._open.write(block)
        if self._open.rows == self._shard_rows:
            self._shards.append(self._open.close())
            self._open = None


class _OpenShard:
    """An unfinished shard: a temporary file until it is closed."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.rows = 0
        # A unique name: a worker of a killed driver may still write the same shard.
        self._path, self._temporary = path, path.with_suffix(f".{uuid4().hex[:8]}.tmp")
        self._tokens = {"source_length": 0, "target_length": 0}
        self._file = self._temporary.open("wb")
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")

    def write(self, block: pa.Table) -> None:
        self._writer.write_table(block, row_group_size=block.num_rows)
        self.rows += block.num_rows
        for name in self._tokens:
            if name in block.column_names:
                self._tokens[name] += pc.sum(block[name]).as_py()

    def discard(self) -> None:
        # Flushing fails if the disk is full; the file is removed in any case.
        with suppress(OSError):
            self._writer.close()
        with suppress(OSError):
            self._file.close()

    def close(self) -> Shard:
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        shard = Shard(
            name=self._path.name,
            rows=self.rows,
            sha256=file_sha256(self._temporary),
            source_tokens=self._tokens["source_length"],
            target_tokens=self._tokens["target_length"],
        )
        self._temporary.rename(self._path)
        return shard


class BlockReader:
    """Reads blocks by number, across all shards of a split."""

    def __init__(self, folder: Path, shards: Sequence[Shard], block_rows: int) -> None:
        self._folder = folder
        self._places = [
            (shard.name, group) for shard in shards for group in range(-(-shard.rows // block_rows))
        ]
        self.block_rows: IntArray = np.array(
            [
                min(block_rows, shard.rows - start)
                for shard in shards
                for start in range(0, shard.rows, block_rows)
            ],
            np.int64,
        )

    def file(self, block: int) -> str:
        """Return the name of the shard of a block."""
        return self._places[block][0]

    def lengths(self, blocks: IntArray) -> tuple[IntArray, IntArray]:
        """Return the source and target lengths of several blocks; zeros without source."""
        tables = [self._lengths(block) for block in blocks]
        target = np.concatenate([t["target_length"].to_numpy() for t in tables]).astype(np.int64)
        if "source_length" not in tables[0].column_names:
            return np.zeros_like(target), target
        source = np.concatenate([t["source_length"].to_numpy() for t in tables])
        return source.astype(np.int64), target

    def _lengths(self, block: int) -> pa.Table:
        return self.table(block, ["source_length", "target_length"], "target_length")

    def ids(self, block: int, column: str) -> Ragged:
        """Return the token ids of a block; `column` is `source_ids` or `target_ids`."""
        array = self.table(block, [column], column)[column].combine_chunks()
        return Ragged(array.values.to_numpy(), array.offsets.to_numpy().astype(np.int64))

    def table(self, block: int, columns: list[str], required: str | None = None) -> pa.Table:
        """Return the existing columns of a block; `required` must exist."""
        name, group = self._places[block]
        try:
            with pq.ParquetFile(self._folder / name) as file:
                present = [c for c in columns if c in file.schema_arrow.names]
                table = file.read_row_group(group, columns=present)
            if required not in (None, *present):
                raise ValueError(f"it has no column {required}")
            _check(table, int(self.block_rows[block]))
        except (OSError, ValueError, IndexError, pa.ArrowException) as error:
            raise DataError(
                f"{self._folder / name}: damaged or missing ({error}); run outrider prepare --force"
            ) from error
        return table


def _check(table: pa.Table, rows: int) -> None:
    """Check the types and the number of rows of a block, and that it has no nulls."""
    if table.num_rows != rows:
        raise ValueError(f"a block has {table.num_rows} rows, but the manifest lists {rows}")
    for field, column in zip(table.schema, table.columns, strict=True):
        ids = field.name.endswith("_ids") and field.type == pa.list_(pa.int32())
        length = field.name.endswith("_length") and pa.types.is_integer(field.type)
        text = not field.name.endswith(("_ids", "_length")) and pa.types.is_string(field.type)
        if column.null_count or not (ids or length or text):
            raise ValueError(f"column {field.name} has type {field.type} or nulls")
        column.validate(full=True)


def ragged_column(rows: Sequence[Sequence[int]]) -> Any:
    """Return lists of ids as an Arrow column of list<int32>."""
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    flat = np.concatenate([np.asarray(row, np.int32) for row in rows] or [np.zeros(0, np.int32)])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))


SHARD_ROWS = 100_000


class Spool(AbstractContextManager["Spool"]):
    """Text rows on disk, written once, and read in order one or more times."""

    def __init__(self, folder: Path, name: str, *, block_rows: int) -> None:
        self.rows = 0
        self.characters = 0
        self._folder = folder
        self._writer = ShardWriter(
            folder, f"text-{name}", shard_rows=SHARD_ROWS, block_rows=block_rows
        )
        self._shards: tuple[Shard, ...] = ()

    def add(self, table: pa.Table, characters: int) -> None:
        """Append rows with a total of `characters`."""
        self._writer.add(table)
        self.rows += table.num_rows
        self.characters += characters

    def close(self) -> None:
        """Finish writing."""
        self._shards = self._writer.close()

    def __exit__(self, *_: object) -> None:
        self._writer.__exit__()

    def batches(self, rows: int, *, remove: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order; `remove` deletes each file after reading."""
        for shard in self._shards:
            path = self._folder / shard.name
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=rows)
            if remove:
                path.unlink()


def spread(start: int, stop: int, *, total: int, chosen: int) -> NDArray[np.bool_]:
    """Mark the items from start to stop that belong to `chosen` evenly spaced ones of `total`."""
    steps = np.arange(start, stop + 1, dtype=np.int64) * min(chosen, total) // max(total, 1)
    return steps[1:] != steps[:-1]
