"""`outrider bench train`: how fast we train, against a bare loop and against transformers."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.bounds import MOST_THREADS
from outrider.cli.console import new_console

__all__ = ["bench_train"]


def bench_train(
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Prepared folder of pairs; by default a synthetic corpus.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Take under a minute.")] = False,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of each engine.", min=1, max=MOST_THREADS)
    ] = None,
) -> None:
    """Measure training speed: engines take turns, each in a process of its own."""

    from outrider.bench.train.speed import measure_training
    from outrider.evaluation.results import write_result

    console = new_console(stderr=True)
    result = measure_training(
        data=data,
        quick=quick,
        threads=threads,
        report=lambda line: console.print(line, highlight=False),
    )
    for name in ("ratio_to_bare", "ratio_to_hf_trainer", "tokens_per_second"):
        typer.echo(f"{name}: {result[name]}")
    if json is not None:
        write_result(json, result)
