"""`outrider export`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export"]


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder or Hub id of a model.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder to write.")],
    to: Annotated[
        str, typer.Option("--to", help="marian, ctranslate2, or outrider for a copy.")
    ] = "marian",
    dtype: Annotated[
        str | None, typer.Option(help="With --to outrider: float32, bfloat16 or float16.")
    ] = None,
    quantization: Annotated[
        str | None, typer.Option(help="With --to ctranslate2: float32 or int8.")
    ] = None,
) -> None:
    """Write a model for another engine, weight for weight, or a smaller copy for this one."""
    from transformers.utils import logging

    from outrider.errors import ConfigError
    from outrider.runtime.export import export_copy, export_ctranslate2, export_marian

    if to not in ("marian", "ctranslate2", "outrider"):
        raise ConfigError("--to", f"got {to!r}, expected marian, ctranslate2 or outrider")
    for name, value, taker in (
        ("--dtype", dtype, "outrider"),
        ("--quantization", quantization, "ctranslate2"),
    ):
        if value is not None and to != taker:
            raise ConfigError(name, f"has no effect with --to {to}; leave it out")
    logging.disable_progress_bar()
    if to == "outrider":
        written = export_copy(model, folder, dtype=dtype or "float32")
    elif to == "ctranslate2":
        written = export_ctranslate2(model, folder, quantization=quantization or "float32")
    else:
        written = export_marian(model, folder)
    typer.echo(f"wrote {written}")
