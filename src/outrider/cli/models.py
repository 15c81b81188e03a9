"""`outrider models`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from outrider.cli.decode_options import Index, Offline
from outrider.cli.pull import say
from outrider.errors import ConfigError, ResourceError


def models(
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="[PAIR]...", help="Pairs such as de-en.")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the downloaded models of these pairs.")
    ] = False,
    index: Index = None,
    offline: Offline = False,
) -> None:
    """List translation models by their languages: downloaded ones, and those of the lists.

    Columns: pair, architecture, size, Mozilla's COMET, licence, source, and the folder if it is
    downloaded. Offline, only downloaded models are listed.
    """
    from outrider.catalog import Pair

    wanted = [Pair.require(pair) for pair in pairs or ()]
    if not remove:
        _list(wanted, index, offline)
        return
    if not wanted:
        raise ConfigError("--remove", "needs pairs, such as outrider models --remove de-en")
    from outrider.catalog.store import models_folder
    from outrider.catalog.store import remove as remove_models

    for pair in wanted:
        for folder in remove_models(models_folder(), pair):
            typer.echo(f"removed {folder}")


def _list(wanted: Sequence[tuple[str, str]], index: str | None, offline: bool) -> None:
    from outrider.catalog.table import list_models

    rows, fault = list_models(wanted, index=index, offline=offline, say=say)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if len(rows) > 1 else ():
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
    if fault is not None and len(rows) > 1:
        say(f"only downloaded models are listed: {fault}")
    elif fault is not None:
        raise fault
    elif len(rows) == 1:
        names = ", ".join(f"{source}-{target}" for source, target in wanted) or "models"
        raise ResourceError(f"{names}: no list has such a model; outrider models lists all")
