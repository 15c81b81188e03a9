"""`outrider key`: who may ask a server."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["key"]


def key(
    file: Annotated[Path, typer.Argument(help="Where the hashes of keys are kept.")],
    name: Annotated[str, typer.Argument(help="Whose key it is; stands in the server's log.")],
    rate: Annotated[
        float | None, typer.Option(help="Requests a minute; any number if not said.")
    ] = None,
    priority: Annotated[
        str, typer.Option(help="The most it may ask for: low, normal or high.")
    ] = "normal",
    remove: Annotated[bool, typer.Option("--remove", help="Forget the key of this name.")] = False,
) -> None:
    """Make an API key for `outrider serve --keys FILE` and print it, this once.

    The file holds its hash alone. A server that is running reads the file again when it changes.
    """
    from outrider.serving.keys import add_key, remove_key

    if remove:
        remove_key(file, name)
    else:
        typer.echo(add_key(file, name, rate=rate, priority=priority))
