"""Cleaned text set aside between reading and encoding, because the tokenizer comes in between."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from outrider.data.manifest import Shard
from outrider.data.shards import ShardWriter

__all__ = ["Spool", "spread"]

SHARD_ROWS = 100_000


class Spool(AbstractContextManager["Spool"]):
    """Text rows on disk: written once, read in order as often as needed, removed while encoding."""

    def __init__(self, folder: Path, name: str, *, block_rows: int) -> None:
        self.rows = 0
        self.characters = 0
        self._folder = folder
        self._writer = ShardWriter(
            folder, f"text-{name}", shard_rows=SHARD_ROWS, block_rows=block_rows
        )
        self._shards: tuple[Shard, ...] = ()

    def add(self, table: pa.Table, characters: int) -> None:
        """Append rows that hold this many characters in all."""
        self._writer.add(table)
        self.rows += table.num_rows
        self.characters += characters

    def close(self) -> None:
        """Finish writing."""
        self._shards = self._writer.close()

    def __exit__(self, *_: object) -> None:
        self._writer.__exit__()

    def batches(self, rows: int, *, remove: bool = False) -> Iterator[pa.RecordBatch]:
        """All rows in order, some at a time; `remove` deletes each file that has been read."""
        for shard in self._shards:
            path = self._folder / shard.name
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=rows)
            if remove:
                path.unlink()


def spread(start: int, stop: int, *, total: int, chosen: int) -> NDArray[np.bool_]:
    """Mark, among items start to stop of `total`, those of `chosen` that are spread evenly."""
    steps = np.arange(start, stop + 1, dtype=np.int64) * min(chosen, total) // max(total, 1)
    return steps[1:] != steps[:-1]
