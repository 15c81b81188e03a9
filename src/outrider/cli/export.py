"""`outrider export`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export"]


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder or Hub id of a model.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder to write.")],
    to: Annotated[str, typer.Option("--to", help="Format: marian.")] = "marian",
) -> None:
    """Write a model in another engine's format, weight for weight."""
    from transformers.utils import logging

    from outrider.errors import ConfigError
    from outrider.runtime.export import export_marian

    if to != "marian":
        raise ConfigError("--to", f"got {to!r}, expected marian")
    logging.disable_progress_bar()
    typer.echo(f"wrote {export_marian(model, folder)}")
