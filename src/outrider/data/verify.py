"""Whether a prepared folder still holds what was written into it, and only ids that exist.

A damaged shard would train another model without a word. Checksums are taken when training or
distilling begins, and remembered in `.verified.json` beside the shards together with each file's
size, times and inode: what has not been touched since is not read again. The footers, which hold
the number of rows and the range of the ids, are read every time.
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

__all__ = ["find_damaged", "verify_shards"]

NAME = ".verified.json"
SPECIAL_IDS = ("pad_id", "eos_id", "unk_id", "bos_id")


def verify_shards(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Refuse a shard that changed since it was written, and ids that the tokenizer has not."""
    for fault in find_damaged(folder, manifest, tokenizer).values():
        raise DataError(fault)


def find_damaged(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> dict[str, str]:
    """Return what is wrong with the shards that are not as they were written, by their names."""
    _check_special_ids(folder, manifest, tokenizer)
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    before, now, damaged = _remembered(folder), {}, {}
    for shard in shards:
        try:
            # Looked at before it is read: a change while it is read is then seen the next time.
            seen = {"sha256": shard.sha256, **_status(folder / shard.name)}
            _verify(folder, shard, manifest, tokenizer, trusted=before.get(shard.name) == seen)
        except DataError as error:
            damaged[shard.name] = str(error)
        else:
            now[shard.name] = seen
    if now != before:
        with suppress(ResourceError, OSError):  # a folder to read only is checked every time
            write_json(folder / NAME, now)
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


def _remembered(folder: Path) -> Mapping[str, Any]:
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
        found, wanted = manifest.tokenizer.get(name), getattr(tokenizer, name)
        if found != wanted:
            raise DataError(
                f"{folder}: its manifest says that the tokenizer's {name} is {found}, but the "
                f"tokenizer beside it has {wanted}; {_remedy(manifest)}"
            )


def _check_rows(path: Path, footer: Any, shard: Shard, manifest: Manifest) -> None:
    groups = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    size = manifest.block_rows
    wanted = [min(size, shard.rows - start) for start in range(0, shard.rows, size)]
    if groups != wanted:
        raise DataError(
            f"{path}: holds {sum(groups)} rows in {len(groups)} blocks, its manifest says "
            f"{shard.rows} in {len(wanted)}; {_remedy(manifest)}"
        )


def _check_ids(path: Path, footer: Any, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Compare the range of the ids, which the footer holds, with the vocabulary."""
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
    """Lowest and highest value of a column of lists; (0, 0) where all are empty."""
    places = {
        footer.row_group(0).column(place).path_in_schema.split(".")[0]: place
        for place in range(footer.num_columns if footer.num_row_groups else 0)
    }
    if places and column not in places:
        raise DataError(f"{path}: has no column {column}; {_remedy(manifest)}")
    lows, highs = [0], [0]
    for group in range(footer.num_row_groups):
        found = footer.row_group(group).column(places[column]).statistics
        if found is not None and found.has_min_max:
            lows.append(int(found.min))
            highs.append(int(found.max))
        else:  # written by somebody else
            values = pq.ParquetFile(path).read_row_group(group, columns=[column])[column]
            flat = np.asarray(values.combine_chunks().values)
            lows.append(int(flat.min(initial=0)))
            highs.append(int(flat.max(initial=0)))
    return min(lows), max(highs)


def _footer(path: Path, manifest: Manifest) -> Any:
    try:
        return pq.read_metadata(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is not Parquet ({error}); {_remedy(manifest)}") from None


def _remedy(manifest: Manifest) -> str:
    if manifest.origin is not None:
        return "remove the folder and run outrider distill again"
    return "run outrider prepare --force"
