"""A prepared folder, opened.

What a preparation did, as a table for people.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from outrider.data.manifest import Manifest, read_manifest
from outrider.data.shards import BlockReader
from outrider.data.verify import find_damaged, verify_shards
from outrider.errors import DataError
from outrider.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Prepared", "open_prepared", "report"]


@dataclass(frozen=True)
class Prepared:
    """Shards, tokenizer and manifest of a corpus that is ready to train on."""

    folder: Path
    manifest: Manifest
    reused: bool = False
    """It was there before, made with the same settings from the same files."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer its ids were made with."""
        return load_tokenizer(self.folder)

    def verify(self) -> None:
        """Check that no shard changed since it was written, and that its ids exist."""
        verify_shards(self.folder, self.manifest, self.tokenizer)

    def damaged(self) -> dict[str, str]:
        """Return what is wrong with the shards that `verify` refuses, by their names."""
        return find_damaged(self.folder, self.manifest, self.tokenizer)

    def reader(self, split: str) -> BlockReader:
        """Reads the blocks of `train` or `valid`."""
        if split not in self.manifest.splits:
            raise DataError(
                f"{self.folder}: has no split {split!r}, only {', '.join(self.manifest.splits)}; "
                "name data.valid, data.valid_rows or data.valid_fraction and prepare again"
            )
        shards = self.manifest.splits[split].shards
        return BlockReader(self.folder, shards, self.manifest.block_rows)


def open_prepared(folder: str | Path, *, verify: bool = False) -> Prepared:
    """Open a prepared folder; all its files must be there and, with `verify`, be unchanged."""
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
    """Rows read, kept and dropped, by split and reason, with an example of each."""
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
