"""`outrider lab bench decode`: decoding speed of a model in every engine that can run it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import check_output, new_console, read_numbers, report_interrupt
from outrider.cli.evaluate import Tokenize
from outrider.errors import ConfigError, nearest
from outrider.options import THREADS, check_bound

_FULL = {"sentences": 1000, "repeats": 5, "batches": "1,8,32,128", "one_pass": 60.0}
_QUICK = {"sentences": 64, "repeats": 3, "batches": "1,8", "one_pass": 0.7, "whole": 140.0}


def bench_decode(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")],
    source: Annotated[
        Path | None, typer.Option(help="Sentences, one per line; by default 64 built-in ones.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Their reference translations, for BLEU and chrF.")
    ] = None,
    sentences: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of sentences; by default 1000.")
    ] = None,
    threads: Annotated[str, typer.Option(help="Numbers of CPU threads, comma-separated.")] = "1,2",
    batches: Annotated[
        str | None, typer.Option(help="Batch sizes, comma-separated; by default 1,8,32,128.")
    ] = None,
    orders: Annotated[
        str, typer.Option(help="Order of batches: sorted by length, unsorted, or both.")
    ] = "sorted,unsorted",
    engines: Annotated[
        str | None,
        typer.Option(help="Measure only these, comma-separated; a wrong name lists all."),
    ] = None,
    isa: Annotated[
        str | None,
        typer.Option(help="Restrict all engines to each of these instruction sets, as avx2,vnni."),
    ] = None,
    shallow: Annotated[
        Path | None, typer.Option(help="Folder of a model with a shallow decoder, as a peer.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Timed rounds; by default 5.")] = None,
    tokenize: Tokenize = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", help="Under four minutes: batch 1 and 8, 3 repeats.")
    ] = False,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables here.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the speeds here.")] = None,
) -> None:
    """Translate the same sentences with every engine, in turn, and compare speed and output."""
    if reference is not None and source is None:
        raise ConfigError("--reference", "has no effect without --source; give both")
    for option, path in (("--json", json), ("--markdown", markdown), ("--png", png)):
        check_output(option, path, source, reference)
    defaults: dict[str, Any] = _QUICK if quick else _FULL
    numbers = read_numbers("--threads", threads, "1,2")
    counts = sorted({check_bound("threads", number, THREADS) for number in numbers})
    sizes = sorted({*read_numbers("--batches", batches or defaults["batches"], "1,8,32,128")})
    chosen = _engines(engines)
    chosen_orders = _orders(orders)

    from outrider_lab.bench.decode.isa import check_isa

    sets: list[str | None] = [None] if isa is None else [*check_isa(isa.split(","))]

    from transformers.utils import logging

    from outrider.runtime.provenance import origin
    from outrider_lab.bench.decode.plan import settings
    from outrider_lab.bench.decode.run import choose_sentences
    from outrider_lab.bench.decode.speed import Limits

    logging.disable_progress_bar()
    chosen_sentences = choose_sentences(
        model, source, reference, most=sentences or defaults["sentences"]
    )
    results = [
        _measure(
            model,
            chosen_sentences,
            settings(sizes, chosen_orders, counts, all_threads=not quick),
            engines=chosen,
            repeats=repeats or defaults["repeats"],
            shallow=shallow,
            tokenize=tokenize,
            slow_once=quick,
            isa=name,
            limits=Limits(defaults["one_pass"], defaults.get("whole", math.inf)),
        )
        for name in sets
    ]
    result = results[0] | {"rows": [row for part in results for row in part["rows"]]}
    result |= origin(model, source=source, reference=reference)
    if shallow is not None:
        result["shallow"] = origin(shallow)["weights_sha256"]
    _print(result)
    _write(result, json, markdown, png)


def _measure(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Run the benchmark behind a progress bar."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from outrider_lab.bench.decode.run import bench_model

    console = new_console(stderr=True)
    columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    hidden = not console.is_terminal
    status = ["nothing yet"]
    with (
        report_interrupt(status),
        Progress(*columns, console=console, transient=True, disable=hidden) as progress,
    ):
        task, counting = progress.add_task("starting", total=None), False

        def expect(turns: int) -> None:
            nonlocal counting
            counting = True
            progress.update(task, total=turns + 1, completed=0)

        def report(text: str) -> None:
            stage = text.partition(":")[0]
            if hidden and stage != status[0].partition(":")[0]:
                typer.echo(stage, err=True)
            status[0] = text
            progress.update(task, description=text, advance=1 if counting else 0)

        return bench_model(*arguments, expect=expect, report=report, **options)


def _orders(text: str) -> list[str]:
    from outrider_lab.bench.decode.plan import ORDERS

    return _choose("--orders", text, ORDERS)


def _engines(text: str | None) -> list[str]:
    from outrider_lab.bench.decode.plan import ENGINES

    return list(ENGINES) if text is None else _choose("--engines", text, ENGINES)


def _choose(option: str, text: str, choices: Sequence[str]) -> list[str]:
    names = text.split(",")
    for word in names:
        if word not in choices:
            hint, expected = nearest(word, choices), ", ".join(choices)
            raise ConfigError(option, f"unknown {word!r}{hint}; expected some of {expected}")
    return [word for word in choices if word in names]


def _print(result: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from outrider_lab.bench.decode.table import NARROW, groups, heading, shown_columns, shown_row

    console = new_console(highlight=False)
    console.print(heading(result), markup=False)
    columns = shown_columns(result, NARROW)
    for title, rows in groups(result):
        table = Table(*columns.values(), title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.columns[0].no_wrap = True
        for row in rows:
            table.add_row(*shown_row(row, columns))
        console.print(table)
    for entry in result["missing"]:
        console.print(f"not measured: {entry['engine']}: {entry['reason']}", markup=False)


def _write(
    result: dict[str, Any], json: Path | None, markdown: Path | None, png: Path | None
) -> None:
    from outrider.files import write_text
    from outrider.runtime.provenance import write_result
    from outrider_lab.bench.decode.table import decode_markdown

    if json is not None:
        write_result(json, result)
    if markdown is not None:
        write_text(markdown, decode_markdown(result))
    if png is not None:
        from outrider_lab.bench.decode.picture import draw_decode_speed

        draw_decode_speed(result, png)
    for path in (json, markdown, png):
        if path is not None:
            typer.echo(f"wrote {path}", err=True)
