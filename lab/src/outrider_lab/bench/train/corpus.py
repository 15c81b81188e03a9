"""A synthetic corpus with lengths of captions and Zipf-distributed tokens."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from outrider.data.manifest import Manifest, Split
from outrider.data.prepared import Prepared, open_prepared
from outrider.data.shards import ShardWriter, ragged_column

_SPECIAL = 4  # pad, eos, unk, bos


def synthetic_corpus(folder: Path, *, rows: int = 20_000, vocab_size: int = 8000) -> Prepared:
    """Write a prepared folder of random token ids; a target is about as long as its source.

    Lengths are log-normal with a median of 15 tokens, as in Multi30k, and at most 100.
    """
    random = np.random.default_rng(0)
    source_length = np.exp(random.normal(np.log(15), 0.35, rows))
    target_length = source_length * np.exp(random.normal(0.05, 0.15, rows))
    columns = {}
    for side, lengths in (("source", source_length), ("target", target_length)):
        ids = [_zipf_ids(random, int(n), vocab_size) for n in np.clip(lengths, 3, 100)]
        columns[f"{side}_ids"] = ragged_column(ids)
        columns[f"{side}_length"] = pa.array([len(row) for row in ids], pa.int32())
    folder.mkdir(parents=True)
    with ShardWriter(folder, "train", shard_rows=rows, block_rows=rows) as writer:
        writer.add(pa.table(columns))
        shards = writer.close()
    Manifest(
        task="translation",
        config={},
        inputs=(),
        tokenizer={"vocab_size": vocab_size, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": 3},
        block_rows=rows,
        splits={"train": Split(shards=shards, rows_read=rows, dropped={})},
    ).write(folder)
    return open_prepared(folder)


def _zipf_ids(random: np.random.Generator, count: int, vocab_size: int) -> list[int]:
    """Draw ids whose frequency is inversely proportional to their rank."""
    rank = (vocab_size - _SPECIAL + 1) ** random.random(count)
    return [_SPECIAL + int(r) - 1 for r in rank]
