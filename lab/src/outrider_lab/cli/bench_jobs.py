"""`outrider lab bench jobs`: jobs on Ray relative to bare processes."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import check_output, measuring


def bench_jobs(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder or Hub id of a model.")],
    data: Annotated[Path, typer.Option("--data", help="Prepared folder with its tokenizer.")],
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Maximum number of rows.")] = None,
    workers: Annotated[int, typer.Option(min=2, help="Processes of each way.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 5,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum tokens at once.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, or int8 on the native core.")] = "float32",
) -> None:
    """Measure rows per second on Ray and in bare processes, with one thread each, in turns."""
    check_output("--json", json)

    from outrider.jobs.distill import DISTILL_TOKENS
    from outrider.runtime.provenance import write_result
    from outrider_lab.bench.jobs.measure import measure_jobs

    with measuring() as report:
        result = measure_jobs(
            model,
            data,
            rows=rows,
            workers=workers,
            rounds=rounds,
            batch_tokens=batch_tokens or DISTILL_TOKENS,
            dtype=dtype,
            report=report,
        )
    for name, speed in result["rows_per_second"].items():
        typer.echo(f"{name}: {speed:,.1f} rows/s")
    typer.echo(f"ratio_to_bare_processes: {result['ratio_to_bare_processes']}")
    if json is not None:
        write_result(json, result)
        typer.echo(f"wrote {json}", err=True)
