"""Opening a prepared folder, and its report as a table."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from outrider.data.manifest import Manifest, read_manifest
from outrider.data.shards import BlockReader
from outrider.data.verify import find_damaged
from outrider.errors import DataError
from outrider.text.tokenizer import Tokenizer, load_tokenizer


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
