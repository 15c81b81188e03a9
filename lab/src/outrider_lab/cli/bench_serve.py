"""`outrider lab bench serve`: a server under load, relative to the library and other servers."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import check_output, measuring, new_console, read_numbers
from outrider.errors import DataError
from outrider.options import MOST_THREADS

QUICK_LINES, QUICK_REPEATS = 256, 3


def bench_serve(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="As for outrider serve: FOLDER or en-de=FOLDER.")
    ],
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw throughput and latency here.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Lines to translate, plain or .gz; by default English ones.")
    ] = None,
    clients: Annotated[
        str, typer.Option(help="Concurrent clients, comma-separated.")
    ] = "1,16,64,256",
    lines: Annotated[int, typer.Option(min=64, help="Use only the first lines.")] = 1024,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of the comparison.")] = 5,
    threads: Annotated[
        int, typer.Option(min=1, max=MOST_THREADS, help="CPU threads of each engine.")
    ] = 1,
    libretranslate: Annotated[
        str | None, typer.Option(help="Address of a LibreTranslate server to measure too.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer lines and turns.")] = False,
) -> None:
    """Measure a server: sentences per second, latencies and memory at 1 to 256 clients.

    Starts the server and a FastAPI server around CTranslate2 (int8, dynamic batches) on this
    machine, sends the same lines to both in turns, and checks that our texts equal the library's.
    """
    counts = read_numbers("--clients", clients, "1,16,64,256")
    for option, path in (("--json", json), ("--png", png)):
        check_output(option, path, *([] if source is None else [source]))
    if source is not None and not source.exists():
        raise DataError(f"{source}: no such file")

    from outrider.data.lines import text_lines
    from outrider.runtime.provenance import origin, write_result
    from outrider.serving.registry import read_spec
    from outrider_lab.bench.decode.sentences import SENTENCES
    from outrider_lab.bench.serve.measure import measure_serve

    if quick:
        lines, repeats = min(lines, QUICK_LINES), min(repeats, QUICK_REPEATS)
    texts = list(SENTENCES) if source is None else list(filter(str.strip, text_lines(source)))
    texts = (texts * (lines // max(1, len(texts)) + 1))[:lines]
    with measuring() as report:
        result = measure_serve(
            model,
            texts,
            clients=counts,
            repeats=repeats,
            threads=threads,
            libretranslate=libretranslate,
            report=report,
        )
    result |= origin(read_spec(model).folder, source=source)
    _print(result)
    if json is not None:
        write_result(json, result)
        typer.echo(f"wrote {json}", err=True)
    if png is not None:
        from outrider_lab.bench.serve.picture import draw_serve

        draw_serve(result, png)
        typer.echo(f"wrote {png}", err=True)


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    columns = ("server", "clients", "sentences/s", "p50 ms", "p95 ms", "p99 ms", "first token ms")
    table = Table(*columns, "MiB", title=f"one line a request, mode {result['mode']}")
    for row in result["rows"]:
        cells = [row["sentences_per_second"], row["p50_ms"], row["p95_ms"], row["p99_ms"]]
        cells += [row.get("first_token_ms"), row["memory_mib"]]
        shown = ["-" if cell is None else f"{cell:g}" for cell in cells]
        table.add_row(row["server"], str(row["clients"]), *shown)
    new_console(highlight=False).print(table)
    for key in ("ratio_to_offline", "ratio_to_ctranslate2_server", "ratio_to_libretranslate"):
        if result[key] is not None:
            typer.echo(f"{key}: {result[key]:.2f}")
