"""`outrider student`."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import new_console, resumable


def student(
    config: Annotated[Path, typer.Argument(help="Student config (YAML).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides, e.g. train.steps=500 shape.words=8000.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of the teacher.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no report.")] = False,
) -> None:
    """Train a smaller model on the translations of a teacher.

    The student starts with some of the teacher's layers and tokens. Interrupted runs resume.
    """
    from outrider.config import load_config
    from outrider.torch.compress.student import StudentConfig, train_student

    settings = load_config(StudentConfig, config, overrides or [])
    with resumable("finished work is kept"):
        folder = train_student(
            settings, threads=threads, console=new_console(stderr=True, quiet=quiet)
        )
    typer.echo(str(folder))
