"""Memory of a rank and of a driver for corpora of 10^5 to 10^7 rows.

    python lab/studies/flat_memory.py --json FILE

The corpus is generated. The rank is the stream of batches that `outrider train` reads, for one
epoch. The driver lists the shards of the corpus, assigns each and reads its record, as `outrider
distill` does; its workers only write the record. Each runs in its own process; its memory is the
peak above the memory before the corpus was opened.
"""

import argparse
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from outrider.data.manifest import Manifest, Split
from outrider.data.prepared import Prepared, open_prepared
from outrider.data.shards import ShardWriter
from outrider.jobs.distill import blocks
from outrider.jobs.folder import Advance, Unit, open_job
from outrider.jobs.workers import finish_units, in_process
from outrider.runtime.memory import peak_bytes, reset_peak, resident_bytes
from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.training.batches import BatchStream
from outrider_lab.bench.process import run_alone
from outrider_lab.bench.train.corpus import synthetic_corpus

BLOCK, SHARD = 10_000, 100_000
ROWS = (100_000, 1_000_000, 10_000_000)


def write_corpus(folder: str, rows: int) -> None:
    """Write the same block of generated pairs repeatedly."""
    path = Path(folder)
    few = synthetic_corpus(path / "few", rows=BLOCK)
    table = pq.read_table(few.folder / few.manifest.splits["train"].shards[0].name)
    with ShardWriter(path, "train", shard_rows=SHARD, block_rows=BLOCK) as writer:
        for _ in range(rows // BLOCK):
            writer.add(table)
        shards = writer.close()
    Manifest(
        task="translation",
        config={},
        inputs=(),
        tokenizer=few.manifest.tokenizer,
        block_rows=BLOCK,
        splits={"train": Split(shards=shards, rows_read=rows, dropped={})},
    ).write(path)


def read_epoch(folder: str) -> dict[str, float]:
    """Read every batch of one epoch."""
    reset_peak()
    before, began, batches = resident_bytes(), time.monotonic(), 0
    stream = BatchStream(open_prepared(Path(folder)), tokens=4096, seed=1, max_length=128)
    for batch in stream:
        batches += 1
        if batch.next_cursor.epoch:
            break
    return _found(before, began) | {"batches": batches}


def drive(folder: str) -> dict[str, float]:
    """Assign every shard of the corpus to workers that only write a record."""
    path = Path(folder)
    reset_peak()
    before, began = resident_bytes(), time.monotonic()
    prepared = Prepared(path, open_prepared(path).manifest)
    units = blocks(prepared, "train", None)
    origin: dict[str, Any] = {key: {} for key in ("weights", "decode", "dtype", "data", "rows")}
    with open_job(path / "out", origin) as job:

        def work(unit: Unit, advance: Advance) -> None:
            job.finish(unit, (), began=began)

        crew = nullcontext(in_process(work))
        finish_units(job, units, crew, damaged={}, stage="distil", progress=False)
        rows = sum(job.read(unit).rows_read for unit in units)
    return _found(before, began) | {"shards": len(units), "rows": rows}


def _found(before: int, began: float) -> dict[str, float]:
    return {"bytes": peak_bytes() - before, "seconds": time.monotonic() - began}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for count in options.rows:
        with tempfile.TemporaryDirectory() as scratch:
            folder = str(Path(scratch) / "data")
            Path(folder).mkdir()
            write_corpus(folder, count)
            rank, driver = (run_alone(one, folder, preload=()) for one in (read_epoch, drive))
        rows.append({"rows": count, "rank": rank, "driver": driver})
        shown = (f"{one['bytes'] / 2**20:.1f} MiB" for one in (rank, driver))
        print(f"{count:,} rows: rank {', driver '.join(shown)}", flush=True)
    result = {"task": "memory while the corpus grows", "rows": rows}
    result |= {"machine": machine(), "versions": versions()}
    if options.json is not None:
        write_result(options.json, result)


if __name__ == "__main__":
    main()
