"""`outrider prepare`."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import new_console


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
    """Clean the corpora of a run, train its tokenizer and write shards for training.

    Reports dropped rows with reasons. Does nothing if the data are already prepared.
    """
    from outrider.config import load_config
    from outrider.data.prepare import prepare as prepare_data
    from outrider.data.prepared import report
    from outrider.run_config import RunConfig
    from outrider.torch.training.check import check_run
    from outrider.torch.training.kinds import kind_of

    run = load_config(RunConfig, config, overrides or [])
    check_run(run)
    prepared = prepare_data(run.data, task=kind_of(run).task, progress=not quiet, force=force)
    if not quiet:
        new_console(stderr=True).print(report(prepared))
    typer.echo(str(prepared.folder))
