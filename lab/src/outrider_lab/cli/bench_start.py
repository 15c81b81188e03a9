"""`outrider lab bench start`: time to the first translation, relative to CTranslate2."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import new_console


def bench_start(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder or Hub id of a model.")],
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    runs: Annotated[int, typer.Option(help="New processes of each engine.", min=1, max=1000)] = 10,
) -> None:
    """Measure time and peak memory of a new process that translates one sentence."""
    from outrider.runtime.provenance import write_result
    from outrider_lab.bench.start.measure import measure_start

    console = new_console(stderr=True)
    result = measure_start(
        model, runs=runs, report=lambda line: console.print(line, highlight=False)
    )
    _print(result)
    if json is not None:
        write_result(json, result)


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("engine", "seconds", "MiB", "text", title="start to first translation")
    rows = {
        "outrider": result,
        "outrider, packing": result["packing"],
        "ctranslate2": result["ctranslate2"],
    }
    for (name, row), text in zip(rows.items(), result["texts"].values(), strict=True):
        table.add_row(name, f"{row['seconds']:.3f}", f"{row['mib']:.1f}", text)
    new_console(highlight=False).print(table)
    for name in ("ratio_time_to_ctranslate2", "ratio_memory_to_ctranslate2", "same_text"):
        typer.echo(f"{name}: {result[name]}")
