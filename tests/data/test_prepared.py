"""Damaged shards and shards with invalid ids are refused by name before training."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from outrider.data import prepared as module
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared, open_prepared
from outrider.data.shards import ragged_column
from outrider.errors import DataError
from outrider.files import file_sha256

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def prepared(configure) -> Prepared:
    return prepare(configure(valid_rows=20, shard_rows=150), progress=False)


def flip_a_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 1
    path.write_bytes(raw)


def edit_manifest(folder: Path, change: Change) -> None:
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def rewrite(prepared: Prepared, column: str, token: int, *, statistics: bool = True) -> Path:
    """Change a token of a shard and update the checksum in the manifest."""
    path = prepared.folder / "train-00000.parquet"
    table = pq.read_table(path)
    rows = table[column].to_pylist()
    rows[5][0] = token
    place = table.column_names.index(column)
    pq.write_table(
        table.set_column(place, column, ragged_column(rows)),
        path,
        row_group_size=prepared.manifest.block_rows,
        write_statistics=statistics,
    )

    def change(values: dict[str, Any]) -> None:
        values["splits"]["train"]["shards"][0]["sha256"] = file_sha256(path)

    edit_manifest(prepared.folder, change)
    return path


def test_a_flipped_bit_is_detected_after_verification(prepared: Prepared) -> None:
    open_prepared(prepared.folder, verify=True)
    flip_a_bit(prepared.folder / "train-00001.parquet")
    with pytest.raises(DataError, match=r"train-00001\.parquet: changed since .* prepare --force"):
        open_prepared(prepared.folder, verify=True)


def test_unchanged_files_are_not_read_again(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        module, "file_sha256", lambda path: read.append(path.name) or file_sha256(path)
    )
    prepared.verify()
    assert len(read) == 3
    prepared.verify()
    assert len(read) == 3
    os.utime(prepared.folder / "valid-00000.parquet")
    prepared.verify()
    assert read[3:] == ["valid-00000.parquet"]


@pytest.mark.parametrize("text", ["", "[]", '{"train-00000.parquet": 1}', None])
def test_a_damaged_or_unwritable_record_of_checks_is_ignored(
    prepared: Prepared, text: str | None
) -> None:
    memory = prepared.folder / module.NAME
    if text is None:
        (memory / "in the way").mkdir(parents=True)  # root can write to read-only files
    else:
        memory.write_text(text)
    prepared.verify()
    flip_a_bit(prepared.folder / "train-00000.parquet")
    with pytest.raises(DataError, match="changed since it was written"):
        prepared.verify()


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(("column", "token"), [("source_ids", 1 << 20), ("target_ids", -3)])
def test_ids_outside_the_vocabulary_are_refused(
    prepared: Prepared, column: str, token: int, statistics: bool
) -> None:
    path = rewrite(prepared, column, token, statistics=statistics)
    last = prepared.tokenizer.vocab_size - 1
    message = f"{path.name}: {column} holds the token {token}, but the vocabulary ends at {last}"
    with pytest.raises(DataError, match=message):
        open_prepared(prepared.folder, verify=True)


def test_ids_inside_the_vocabulary_are_accepted(prepared: Prepared) -> None:
    rewrite(prepared, "target_ids", prepared.tokenizer.vocab_size - 1)
    open_prepared(prepared.folder, verify=True)


def set_rows(values: dict[str, Any]) -> None:
    values["splits"]["train"]["shards"][0]["rows"] += 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_rows, r"holds 150 rows in 1 blocks, but its manifest lists 151"),
        (
            lambda values: values["tokenizer"].update(eos_id=9),
            r"eos_id of the tokenizer is 9 in the",
        ),
        (
            lambda values: values["tokenizer"].pop("pad_id"),
            r"pad_id of the tokenizer is None in",
        ),
        (lambda values: values.update(block_rows=0), r"manifest\.json: damaged at block_rows"),
        (lambda values: values.update(origin={"model": "m"}, block_rows=7), "outrider distill"),
    ],
)
def test_an_edited_manifest_is_checked(prepared: Prepared, change: Change, message: str) -> None:
    edit_manifest(prepared.folder, change)
    with pytest.raises(DataError, match=message):
        open_prepared(prepared.folder, verify=True)


def test_a_file_that_is_not_parquet(prepared: Prepared) -> None:
    path = prepared.folder / "train-00000.parquet"
    path.write_bytes(b"words")

    def change(values: dict[str, Any]) -> None:
        values["splits"]["train"]["shards"][0]["sha256"] = file_sha256(path)

    edit_manifest(prepared.folder, change)
    with pytest.raises(DataError, match=r"train-00000\.parquet: is not Parquet"):
        open_prepared(prepared.folder, verify=True)
