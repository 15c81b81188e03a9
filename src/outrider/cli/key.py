"""`outrider key`."""

from pathlib import Path
from typing import Annotated

import typer


def key(
    file: Annotated[Path, typer.Argument(help="File with the hashes of keys.")],
    name: Annotated[str, typer.Argument(help="Name of the key, shown in the server's log.")],
    rate: Annotated[
        float | None, typer.Option(help="Most requests per minute; by default unlimited.")
    ] = None,
    priority: Annotated[
        str, typer.Option(help="Highest priority of its requests: low, normal or high.")
    ] = "normal",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the key of this name.")] = False,
) -> None:
    """Create an API key for `outrider serve --keys FILE` and print it once.

    The file, a SQLite database, stores only its hash. A running server notices changes.
    """
    from outrider.serving.keys import add_key, remove_key

    if remove:
        remove_key(file, name)
    else:
        typer.echo(add_key(file, name, rate=rate, priority=priority))
