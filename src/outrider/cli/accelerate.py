"""`outrider accelerate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import new_console, resumable
from outrider.cli.decode_options import names_models
from outrider.cli.pull import find_by_name


@names_models
def accelerate(
    lists: dict[str, Any],
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Model folder, .argosmodel file, Hub id, or a pair such as de-en."
        ),
    ],
    text: Annotated[
        list[Path],
        typer.Option("--text", help="Text in the source language, plain or .gz; may be repeated."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    minutes: Annotated[
        float, typer.Option(min=1.0, help="Approximate time for translation and training.")
    ] = 60.0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no report.")] = False,
) -> None:
    """Speed up an existing model without changing its output.

    The model translates the text, a small drafter is trained on these translations, and both are
    written to a new folder with a report of the speed. Interrupted runs resume.
    """
    from outrider.torch.compress.accelerate import accelerate as run

    model = find_by_name(model, **lists)
    with resumable("finished work is kept"):
        folder = run(
            model,
            text,
            out,
            minutes=minutes,
            threads=threads,
            console=new_console(stderr=True, quiet=quiet),
        )
    typer.echo(str(folder))
