"""Decoding speed of a model with and without its drafter, on sentences that were held out."""

from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.backends.threads import default_threads
from outrider.bench import bench, choose_lines
from outrider.data.prepared import Prepared
from outrider.files import write_text
from outrider.runtime.origin import origin
from outrider.torch.training.validation import valid_texts

__all__ = ["measure"]

SENTENCES = 128


def measure(
    folder: Path, target: Path, prepared: Prepared, threads: int | None, console: Console
) -> dict[str, Any]:
    """Decode held-out sentences in batches of several sizes, with one thread and with all."""
    held_out = prepared.folder.parent / "held-out.txt"
    write_text(held_out, "".join(f"{line}\n" for line in valid_texts(prepared)[0]))
    console.print("measuring on sentences that were held out", highlight=False)
    result = bench(
        {folder.name: folder},
        choose_lines(held_out, SENTENCES),
        threads=sorted({1, threads or default_threads()}),
        modes=("ar", "tandem"),  # a drafter of a few slots writes no complete text in parallel
    )
    return result | {"target": target.name, **origin(folder)}
