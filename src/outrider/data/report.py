"""What a preparation did, as a table for people."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from outrider.data.prepared import Prepared

__all__ = ["report"]


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
