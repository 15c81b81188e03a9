"""`outrider jobs`."""

from typing import Annotated

import typer


def jobs_status(
    folder: Annotated[
        str, typer.Argument(help="Output of a job, finished or not: a folder or a store's URL.")
    ],
) -> None:
    """Show the progress of a job: shards, rows, speed, time left, and shards set aside.

    Only reads its files, so the job may run on another machine or be stopped.
    """
    from datetime import timedelta

    from outrider.jobs.folder import read_status

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
