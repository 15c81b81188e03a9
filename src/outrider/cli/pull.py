"""`outrider pull`, and the options of commands that take models by name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import new_console, resumable
from outrider.cli.decode_options import Index, Offline, Small
from outrider.errors import ConfigError


def pull(
    pairs: Annotated[list[str], typer.Argument(metavar="PAIR...", help="Pairs such as de-en.")],
    to: Annotated[
        Path | None,
        typer.Option(help="Write a folder with its own list, for machines without network."),
    ] = None,
    index: Index = None,
    small: Small = False,
    offline: Offline = False,
) -> None:
    """Download translation models by their languages, and print their folders.

    An interrupted download continues with the same command. Without --index the lists are
    Mozilla's model registry, Firefox's Remote Settings, and OPUS-MT on the Hub.
    """
    from outrider.catalog import Catalog, Pair

    wanted = [Pair.require(pair) for pair in pairs]
    with resumable("what was downloaded is kept"), showing_progress() as report:
        catalog = Catalog(index, offline=offline, small=small, say=say, report=report)
        for pair in wanted:
            found = catalog.pull(pair) if to is None else catalog.pull_to(to, pair)
            typer.echo(str(found.folder))


def find_by_name(name: str, **options: Any) -> str:
    """Return the folder of a pair, downloading a missing model; any other name as it is.

    `options` are those of `names_models`.
    """
    if "/" in name or Path(name).exists():
        return name
    from outrider.catalog import find_model

    with resumable("what was downloaded is kept"), showing_progress() as report:
        return str(find_model(name, say=say, report=report, **options) or name)


def pair_name(source: str | None, target: str | None) -> str:
    """Return the pair of `--from` and `--to`, both of which are needed without a model."""
    if not source or not target:
        message = "is required, or both --from and --to, such as --from de --to en"
        raise ConfigError("--model", message)
    from outrider.catalog import Pair

    Pair.require(name := f"{source}-{target}")
    return name


def say(text: str) -> None:
    """Print a message on stderr."""
    typer.echo(f"outrider: {text}", err=True)


@contextmanager
def showing_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a function that shows a file's progress, on a terminal only."""
    console = new_console(stderr=True)
    if not console.is_terminal:
        yield lambda name, have, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def report(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name)
            progress.update(tasks[name], completed=have, total=total)

        yield report
