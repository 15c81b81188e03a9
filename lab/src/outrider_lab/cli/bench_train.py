"""`outrider lab bench train`: training speed relative to a bare loop and to transformers."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import new_console
from outrider.options import MOST_THREADS


def bench_train(
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Prepared folder of pairs; by default a synthetic corpus.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Take a minute or two.")] = False,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of each engine.", min=1, max=MOST_THREADS)
    ] = None,
) -> None:
    """Measure training speed: engines take turns in separate processes."""

    from outrider.runtime.provenance import write_result
    from outrider_lab.bench.train.speed import measure_training

    console = new_console(stderr=True)
    result = measure_training(
        data=data,
        quick=quick,
        threads=threads,
        report=lambda line: console.print(line, highlight=False),
    )
    _print(result)
    if json is not None:
        write_result(json, result)


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    heads = ("engine", "precision", "batches", "target tokens/s", "outrider is")
    table = Table(*heads, title="training speed")
    for row in result["rows"]:
        table.add_row(
            *(row["engine"], row["precision"], row["batches"]),
            f"{row['tokens_per_second']:,.0f}",
            f"{row['outrider_times_as_fast']:.2f}x",
        )
    new_console(highlight=False).print(table)
    for name in (
        *("ratio_to_bare", "ratio_to_hf_trainer", "ratio_to_tuned_hf_trainer"),
        "tokens_per_second",
    ):
        typer.echo(f"{name}: {result[name]}")
