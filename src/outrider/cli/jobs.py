"""`outrider jobs`: how far work on a corpus is."""

from typing import Annotated

import typer

__all__ = ["jobs_status"]


def jobs_status(
    folder: Annotated[
        str, typer.Argument(help="What a job writes, finished or not: a folder, or a store's URL.")
    ],
) -> None:
    """Tell how far a job is: shards, rows, speed, time left, and what was set aside.

    Read from its files alone, so it does not matter whether the job runs, or where.
    """
    from datetime import timedelta

    from outrider.jobs.status import read_status

    status = read_status(folder)
    typer.echo(f"folder     {status.folder}")
    typer.echo(f"shards     {status.done:,} of {status.shards:,}")
    typer.echo(f"rows       {status.rows_done:,} of {status.rows:,}")
    if status.speed is not None and status.seconds_left is not None:
        typer.echo(f"speed      {status.speed:,.1f} rows/s since it was last started")
        typer.echo(f"time left  {timedelta(seconds=round(status.seconds_left))}")
    typer.echo(f"set aside  {len(status.aside)}")
    for name, fault in status.aside.items():
        typer.echo(f"  {name}: {fault}")
