"""`outrider export`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export"]


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder or Hub id of a model.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder to write.")],
    to: Annotated[str, typer.Option("--to", help="marian, or outrider for a copy.")] = "marian",
    dtype: Annotated[
        str | None, typer.Option(help="With --to outrider: float32, bfloat16 or float16.")
    ] = None,
) -> None:
    """Write a model for another engine, weight for weight, or a smaller copy for this one."""
    from transformers.utils import logging

    from outrider.errors import ConfigError
    from outrider.runtime.export import export_copy, export_marian

    if to not in ("marian", "outrider"):
        raise ConfigError("--to", f"got {to!r}, expected marian or outrider")
    if to == "marian" and dtype is not None:
        raise ConfigError("--dtype", "has no effect with --to marian; leave it out")
    logging.disable_progress_bar()
    if to == "outrider":
        typer.echo(f"wrote {export_copy(model, folder, dtype=dtype or 'float32')}")
    else:
        typer.echo(f"wrote {export_marian(model, folder)}")
