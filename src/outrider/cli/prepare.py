"""`outrider prepare`: from corpora to a prepared folder."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["prepare"]


def prepare(
    config: Annotated[Path, typer.Argument(help="Run config (YAML).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides, e.g. data.root=corpora.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace data that was prepared differently.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no report.")] = False,
) -> None:
    """Clean the corpora of a run, train its tokenizer and write shards to train on.

    Says what was dropped and why. Does nothing if the data are prepared already.
    """
    from rich.console import Console

    from outrider.config import load_config
    from outrider.data.config import Task
    from outrider.data.prepare import prepare as prepare_data
    from outrider.data.report import report
    from outrider.training.run_config import RunConfig

    run = load_config(RunConfig, config, overrides or [])
    task: Task = "translation" if run.model.type == "seq2seq" else "language_model"
    if run.model.rides:
        from outrider.training.build import run_task

        task = run_task(run)
    prepared = prepare_data(run.data, task=task, progress=not quiet, force=force)
    if not quiet:
        Console(stderr=True).print(report(prepared))
    typer.echo(str(prepared.folder))
