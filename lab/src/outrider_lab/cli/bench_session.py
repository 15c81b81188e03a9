"""`outrider lab bench session`: continuous batching relative to fixed batches."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import check_output, measuring, new_console
from outrider.errors import ConfigError, DataError, ModelError
from outrider.options import MOST_THREADS

_MODES = ("ar", "tandem")


def bench_session(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")],
    source: Annotated[Path, typer.Option(help="Lines to decode, plain or .gz.")],
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw which text occupies which row in which round.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows, equal for both.")] = 32,
    mode: Annotated[str, typer.Option(help="ar, tandem, or both with a comma.")] = "ar,tandem",
    lines: Annotated[int, typer.Option(min=1, help="Use only the first lines.")] = 1000,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="native, torch or auto.")] = None,
) -> None:
    """Measure the gain of replacing finished rows immediately."""
    modes = [name.strip() for name in mode.split(",")]
    if unknown := [name for name in modes if name not in _MODES]:
        raise ConfigError("--mode", f"got {unknown[0]!r}, expected {' or '.join(_MODES)}")
    for option, path in (("--json", json), ("--png", png)):
        check_output(option, path, source)
    if not source.exists():  # before the slow imports
        raise DataError(f"{source}: no such file")

    from outrider.data.lines import text_lines
    from outrider.runtime import Translator, load
    from outrider.runtime.provenance import origin, write_result
    from outrider_lab.bench.session.measure import measure_session

    texts = text_lines(source)[:lines]
    translator = load(model, threads=threads, backend=backend)
    if not isinstance(translator, Translator):
        raise ModelError(f"{model}: is a language model; bench session needs a translation model")
    with measuring() as report:
        result = measure_session(
            translator, texts, rows=rows, modes=modes, repeats=repeats, report=report
        )
    result |= {"backend": type(translator.backend).__name__, **origin(model, source=source)}
    _print(result)
    if json is not None:
        write_result(json, result)
        typer.echo(f"wrote {json}", err=True)
    if png is not None:
        from outrider_lab.bench.session.measure import watch_batches, watch_session
        from outrider_lab.bench.session.picture import draw_session

        few = texts[:_DRAWN]
        draw_session(
            watch_batches(translator, few, rows=_ROWS),
            watch_session(translator, few, rows=_ROWS),
            png,
        )
        typer.echo(f"wrote {png}", err=True)


_DRAWN, _ROWS = 24, 6
"""Texts and rows of the picture."""


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(
        *("mode", "batches", "session", "times as fast"),
        title=f"sentences a second, {result['rows']} rows at once, {result['sentences']} lines",
    )
    for mode in result["modes"]:
        speed = mode["sentences_per_second"]
        table.add_row(
            mode["mode"],
            f"{speed['batches']:.0f}",
            f"{speed['session']:.0f}",
            f"{mode['ratio']:.2f}",
        )
    new_console(highlight=False).print(table)
