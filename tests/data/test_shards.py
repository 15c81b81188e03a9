"""Shards: rows are read back as written, in whole blocks, from files with final names only."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.data.manifest import Shard
from outrider.data.shards import BlockReader, ShardWriter, ragged_column
from outrider.errors import DataError
from outrider.files import file_sha256


def table(rows: list[list[int]]) -> pa.Table:
    lengths = pa.array([len(row) for row in rows], pa.int32())
    return pa.table({"target_ids": ragged_column(rows), "target_length": lengths})


@settings(max_examples=40)
@given(
    chunks=st.lists(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=12), max_size=6),
    shard_rows=st.integers(1, 20),
    block_rows=st.integers(1, 8),
)
def test_rows_are_read_back_in_order(
    tmp_path_factory, chunks: list[list[list[int]]], shard_rows: int, block_rows: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    writer = ShardWriter(folder, "train", shard_rows=shard_rows, block_rows=block_rows)
    for chunk in chunks:
        writer.add(table(chunk))
    shards = writer.close()
    rows = [row for chunk in chunks for row in chunk]
    assert [shard.rows for shard in shards[:-1]] == [shard_rows] * (len(shards) - 1)
    assert sum(shard.rows for shard in shards) == len(rows)
    assert sum(shard.target_tokens for shard in shards) == sum(map(len, rows))

    reader, found = BlockReader(folder, shards, block_rows), []
    assert reader.block_rows.sum() == len(rows)
    for block, size in enumerate(reader.block_rows):
        ids = reader.ids(block, "target_ids")
        assert len(ids.lengths) == size
        found += [part.tolist() for part in np.split(ids.flat, ids.offsets[1:-1])]
    assert found == rows


def test_lengths_of_several_blocks(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, "train", shard_rows=5, block_rows=2)
    writer.add(table([[1] * n for n in range(10)]))
    reader = BlockReader(tmp_path, writer.close(), 2)
    assert reader.block_rows.tolist() == [2, 2, 1, 2, 2, 1]
    source, target = reader.lengths(np.array([5, 0, 2]))
    assert target.tolist() == [9, 0, 1, 4]
    assert source.tolist() == [0, 0, 0, 0]


def test_only_finished_shards_have_their_final_name(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, "train", shard_rows=4, block_rows=2)
    writer.add(table([[1]] * 6))
    whole, half = sorted(p.name for p in tmp_path.iterdir())
    assert whole == "train-00000.parquet"
    assert re.fullmatch(r"train-00001\.\w+\.tmp", half)
    shards = writer.close()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["train-00000.parquet", "train-00001.parquet"]
    assert [file_sha256(tmp_path / name) for name in names] == [shard.sha256 for shard in shards]
    assert pq.ParquetFile(tmp_path / names[0]).num_row_groups == 2


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, "train", shard_rows=4, block_rows=2)
    writer.add(table([[1]]))
    reader = BlockReader(tmp_path, writer.close(), 2)
    (tmp_path / "train-00000.parquet").unlink()
    with pytest.raises(DataError, match=r"train-00000.parquet: damaged or missing .*--force"):
        reader.ids(0, "target_ids")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["target_ids"]), "has no column target_ids"),
        (lambda t: t.slice(1), "a block has 4 rows, but the manifest lists 5"),
        (lambda t: _with_ids(t, pa.array(["a"] * 5)), "column target_ids has type string"),
        (lambda t: _with_ids(t, pa.array([[1.5]] * 5)), "column target_ids has type list<"),
        (lambda t: _with_ids(t, pa.array([[1], None] + [[1]] * 3, IDS)), "or nulls"),
    ],
    ids=["no column", "fewer rows", "text", "fractions", "gaps"],
)
def test_a_shard_of_another_shape_gives_one_error_message(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    pq.write_table(change(table([[1, 2]] * 5)), tmp_path / "train-00000.parquet")
    shard = Shard(name="train-00000.parquet", rows=5, sha256="", source_tokens=0, target_tokens=10)
    with pytest.raises(DataError, match=f"train-00000.parquet: damaged or missing .*{message}"):
        BlockReader(tmp_path, [shard], block_rows=5).ids(0, "target_ids")


IDS = pa.list_(pa.int32())


def _with_ids(table: pa.Table, column: pa.Array) -> pa.Table:
    return table.set_column(0, "target_ids", column)
