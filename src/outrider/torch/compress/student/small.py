"""The student as it is shipped: int8, some of it int4, with card and tokenizer."""

import shutil
from collections.abc import Collection
from pathlib import Path

from rich.console import Console

from outrider.errors import DataError
from outrider.files import read_json, write_json
from outrider.formats.identity import weights_of
from outrider.formats.quantised import FEEDFORWARD
from outrider.torch.compress.student.shrink import shrink
from outrider.torch.export import export_copy

__all__ = ["write_small"]


def write_small(
    model: Path, out: Path, int4: Collection[str], pairs: Path, console: Console
) -> Path:
    """Write a model in few bits, unless that was done.

    Args:
        model: The trained student, in float32.
        out: The folder to write.
        int4: Which parts are int4.
        pairs: Prepared pairs in its words, for feed-forwards to be rounded on.
        console: Where to say what that costs.
    """
    record = out.with_suffix(".json")
    made = {"weights": weights_of(model), "int4": sorted(int4)}
    if out.is_dir() and record.is_file() and read_json(record, error=DataError) == made:
        return out
    rounded = out.with_name("rounded")
    for old in (out, rounded):
        shutil.rmtree(old, ignore_errors=True)
    if FEEDFORWARD in int4:
        shrink(model, rounded, int4=[FEEDFORWARD], data=pairs, console=console)
        for path in model.iterdir():
            if path.is_file() and not (rounded / path.name).exists():
                shutil.copyfile(path, rounded / path.name)
    export_copy(rounded if rounded.is_dir() else model, out, dtype="int8", int4=int4)
    shutil.rmtree(rounded, ignore_errors=True)
    write_json(record, made)
    return out
