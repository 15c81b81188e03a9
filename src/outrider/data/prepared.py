"""Opening and verification of a prepared folder, and its report as a table.

A damaged shard would silently train another model. Checksums are computed when training or
distillation begins. They are cached in `.verified.json` with each file's size, times and inode, so
unchanged files are not read again. The footers with the number of rows and the range of the ids are
read every time.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.console import Group
from rich.table import Table
from rich.text import Text

from outrider.data.manifest import Manifest, Shard, read_manifest
from outrider.data.shards import BlockReader
from outrider.errors import DataError, ResourceError
from outrider.files import file_sha256, read_json, write_json
from outrider.text.tokenizer import Tokenizer, load_tokenizer
from outrider.text.tokenizer.pair import PairTokenizer


@dataclass(frozen=True)
class Prepared:
    """Shards, tokenizer and manifest of a corpus that is ready to train on."""

    folder: Path
    manifest: Manifest
    reused: bool = False
    """Whether it existed before, with the same settings and files."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of its token ids."""
        return load_tokenizer(self.folder)

    def verify(self) -> None:
        """Raise an error if a shard changed or has token ids outside the vocabulary."""
        for fault in self.damaged().values():
            raise DataError(fault)

    def damaged(self) -> dict[str, str]:
        """Return the faults of damaged shards by name."""
        return find_damaged(self.folder, self.manifest, self.tokenizer)

    def reader(self, split: str) -> BlockReader:
        """Return a reader of the blocks of `train` or `valid`."""
        if split not in self.manifest.splits:
            raise DataError(
                f"{self.folder}: has no split {split!r}, only {', '.join(self.manifest.splits)}; "
                "name data.valid, data.valid_rows or data.valid_fraction and prepare again"
            )
        shards = self.manifest.splits[split].shards
        return BlockReader(self.folder, shards, self.manifest.block_rows)


def open_prepared(folder: str | Path, *, verify: bool = False) -> Prepared:
    """Open a prepared folder; all its files must exist and, with `verify`, be unchanged."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    for split in manifest.splits.values():
        for shard in split.shards:
            path = folder / shard.name
            if not path.is_file():
                raise DataError(f"{path}: missing; run outrider prepare --force")
    prepared = Prepared(folder, manifest)
    if verify:
        prepared.verify()
    return prepared


def report(prepared: Prepared) -> Group:
    """Return a table of kept and dropped rows by split and reason, with examples."""
    manifest = prepared.manifest
    unit = "pairs" if manifest.task == "translation" else "rows"
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("split")
    table.add_column("")
    table.add_column("rows", justify="right")
    table.add_column("example", no_wrap=True, ratio=1)
    for name, split in manifest.splits.items():
        files = f"{len(split.shards)} shard{'s' * (len(split.shards) > 1)}"
        shards = f"{files}, {split.target_tokens:,} target tokens"
        table.add_row(name, "kept", f"{split.rows:,}", Text(shards))
        for reason, dropped in split.dropped.items():
            table.add_row("", f"dropped: {reason}", f"{dropped.count:,}", Text(dropped.example))
    size = manifest.tokenizer["vocab_size"]
    done = "already prepared, nothing to do" if prepared.reused else f"vocabulary of {size:,}"
    rows = manifest.splits["train"].rows
    return Group(table, Text(f"{prepared.folder}: {rows:,} training {unit}, {done}"))


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
