"""`outrider lab compare`: train several models on a task with an equal budget."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import StoppedError, check_output, new_console
from outrider.errors import ConfigError
from outrider.options import MOST_THREADS

WIDE = 160
"""Columns of a table that is written to a file."""


def compare(
    configs: Annotated[
        list[Path], typer.Argument(help="Run configs; their data and evaluate are not used.")
    ],
    task: Annotated[str, typer.Option(help="The task, for example `copy`.")],
    steps: Annotated[int | None, typer.Option(min=1, help="Updates of every model.")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Minutes of every model, instead of updates.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every model.")] = 1,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value for all configs; task.key=value for the task."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="key=value,value: every config with each value; several options are combined."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Corpus of the tasks text and translation.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Draw the result here.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder of the runs, which can be resumed.")] = Path(
        "runs/compare"
    ),
    threads: Annotated[
        int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard these runs and train them again.")
    ] = False,
) -> None:
    """Train models for an equal budget on a built-in task and compare them.

    The same command resumes an interrupted comparison and repeats no finished run. The result names
    models that fail.
    """
    if (steps is None) == (minutes is None):
        raise ConfigError("--steps", "give either --steps or --minutes")

    from outrider_lab.bench.compare.run import Budget, Comparison
    from outrider_lab.bench.compare.run import compare as compare_models

    check_output("--json", json)
    check_output("--png", png, json)
    settings, others = _divide(overrides or [])
    comparison = Comparison(
        task=task,
        budget=Budget(steps, minutes),
        settings=settings,
        overrides=others,
        vary=dict(_values(text) for text in vary or []),
        data=data,
        seeds=seeds,
        folder=folder,
        threads=threads,
        restart=restart,
    )
    try:
        result = compare_models(configs, comparison, console=new_console(stderr=True))
    except KeyboardInterrupt:
        raise StoppedError("stopped; the same command continues") from None
    _print(result)
    _write(result, json, png)
    if any(model["status"] == "failed" for model in result["models"]):
        raise typer.Exit(2)


def _divide(overrides: list[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Separate the settings of the task from the keys of the run configs."""
    from outrider import yaml12

    settings: dict[str, Any] = {}
    others = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not key.startswith("task."):
            others.append(override)
            continue
        if not equals:
            message = "is written key=value, for example task.train_length=10"
            raise ConfigError(override, message)
        try:
            settings[key.removeprefix("task.")] = yaml12.parse(text)
        except ValueError:
            settings[key.removeprefix("task.")] = text
    return settings, tuple(others)


def _values(text: str) -> tuple[str, list[Any]]:
    """Read `key=value,value`."""
    from outrider import yaml12

    key, equals, values = text.partition("=")
    try:
        items = yaml12.parse(f"[{values}]") if equals and key else []
    except ValueError:
        items = []
    if not items or any(isinstance(value, dict | list) for value in items):
        message = "is written key=value,value with words or numbers, for example"
        raise ConfigError(f"--vary {text}", f"{message} model.position=rotary,alibi")
    if key.startswith("task."):
        raise ConfigError(f"--vary {text}", "a task is the same for all; use --set")
    return key, list(dict.fromkeys(items))


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    from outrider_lab.bench.compare.summary import failures, table, title

    heads, rows = table(result)
    shown = Table(title=title(result))
    for place, head in enumerate(heads):
        shown.add_column(head, justify="right" if place else "left", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console = new_console(highlight=False)
    if not console.is_terminal:
        console = new_console(highlight=False, width=WIDE)
    console.print(shown)
    for line in failures(result):
        console.print(line, markup=False, soft_wrap=True)


def _write(result: dict[str, Any], json: Path | None, png: Path | None) -> None:
    if json is not None:
        from outrider.runtime.provenance import write_result

        write_result(json, result)
        typer.echo(f"wrote {json}", err=True)
    if png is not None:
        from outrider_lab.bench.compare.picture import draw_comparison

        draw_comparison(result, png)
        typer.echo(f"wrote {png}", err=True)
