"""Verification of a prepared folder: checksums of the shards and range of the token ids.

A damaged shard would silently train another model. Checksums are computed when training or
distillation begins. They are cached in `.verified.json` with each file's size, times and inode, so
unchanged files are not read again. The footers with the number of rows and the range of the ids are
read every time.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from outrider.data.manifest import Manifest, Shard
from outrider.errors import DataError, ResourceError
from outrider.files import file_sha256, read_json, write_json
from outrider.text.tokenizer import Tokenizer
from outrider.text.tokenizer.pair import PairTokenizer

NAME = ".verified.json"
SPECIAL_IDS = ("pad_id", "eos_id", "unk_id", "bos_id")


def find_damaged(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the faults of changed shards, or with ids outside the vocabulary, by name."""
    _check_special_ids(folder, manifest, tokenizer)
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    cached, verified, damaged = _read_cache(folder), {}, {}
    for shard in shards:
        try:
            # The status is read before the file, so that a change in between is noticed later.
            status = {"sha256": shard.sha256, **_status(folder / shard.name)}
            _verify(folder, shard, manifest, tokenizer, trusted=cached.get(shard.name) == status)
        except DataError as error:
            damaged[shard.name] = str(error)
        else:
            verified[shard.name] = status
    if verified != cached:
        with suppress(ResourceError, OSError):  # a read-only folder is verified every time
            write_json(folder / NAME, verified)
    return damaged


def _verify(
    folder: Path, shard: Shard, manifest: Manifest, tokenizer: Tokenizer, *, trusted: bool
) -> None:
    path = folder / shard.name
    if not trusted and file_sha256(path) != shard.sha256:
        raise DataError(
            f"{path}: changed since it was written, its checksum differs; {_remedy(manifest)}"
        )
    footer = _footer(path, manifest)
    _check_rows(path, footer, shard, manifest)
    _check_ids(path, footer, manifest, tokenizer)


def _read_cache(folder: Path) -> Mapping[str, Any]:
    try:
        return read_json(folder / NAME, error=DataError)
    except DataError:
        return {}


def _status(path: Path) -> dict[str, int]:
    if not path.is_file():
        raise DataError(f"{path}: missing; run outrider prepare --force")
    status = path.stat()
    return {
        "bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "changed_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def _check_special_ids(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
    for name in ("vocab_size", *SPECIAL_IDS):
        recorded, actual = manifest.tokenizer.get(name), getattr(tokenizer, name)
        if recorded != actual:
            raise DataError(
                f"{folder}: {name} of the tokenizer is {recorded} in the manifest and {actual} in "
                f"the tokenizer's files; {_remedy(manifest)}"
            )


def _check_rows(path: Path, footer: Any, shard: Shard, manifest: Manifest) -> None:
    groups = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    size = manifest.block_rows
    expected = [min(size, shard.rows - start) for start in range(0, shard.rows, size)]
    if groups != expected:
        raise DataError(
            f"{path}: holds {sum(groups)} rows in {len(groups)} blocks, but its manifest lists "
            f"{shard.rows} in {len(expected)}; {_remedy(manifest)}"
        )


def _check_ids(path: Path, footer: Any, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Compare the range of the ids in the footer with the vocabulary."""
    source = tokenizer.source if isinstance(tokenizer, PairTokenizer) else tokenizer
    sizes = {"target_ids": tokenizer.vocab_size}
    if manifest.task == "translation":
        sizes["source_ids"] = source.vocab_size
    for column, size in sizes.items():
        lowest, highest = _range(path, footer, column, manifest)
        if lowest < 0 or highest >= size:
            wrong = lowest if lowest < 0 else highest
            raise DataError(
                f"{path}: {column} holds the token {wrong}, but the vocabulary ends at "
                f"{size - 1}; {_remedy(manifest)}"
            )


def _range(path: Path, footer: Any, column: str, manifest: Manifest) -> tuple[int, int]:
    """Return the lowest and highest value of a column of lists; (0, 0) if all are empty."""
    places = {
        footer.row_group(0).column(place).path_in_schema.split(".")[0]: place
        for place in range(footer.num_columns if footer.num_row_groups else 0)
    }
    if places and column not in places:
        raise DataError(f"{path}: has no column {column}; {_remedy(manifest)}")
    lows, highs = [0], [0]
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(places[column]).statistics
        if statistics is not None and statistics.has_min_max:
            lows.append(int(statistics.min))
            highs.append(int(statistics.max))
        else:  # written by other software
            values = pq.ParquetFile(path).read_row_group(group, columns=[column])[column]
            flat = np.asarray(values.combine_chunks().values)
            lows.append(int(flat.min(initial=0)))
            highs.append(int(flat.max(initial=0)))
    return min(lows), max(highs)


def _footer(path: Path, manifest: Manifest) -> Any:
    try:
        return pq.read_metadata(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is not Parquet ({error}); {_remedy(manifest)}") from error


def _remedy(manifest: Manifest) -> str:
    if manifest.origin is not None:
        return "remove the folder and run outrider distill again"
    return "run outrider prepare --force"
