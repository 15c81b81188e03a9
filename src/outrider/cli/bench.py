"""`outrider bench`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import check_output, measuring, new_console, read_numbers
from outrider.cli.decode_options import check, names_models
from outrider.cli.pull import find_by_name
from outrider.options import THREADS, check_bound


@names_models
def bench(
    lists: dict[str, Any],
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model folder, or a pair such as de-en.")
    ],
    text: Annotated[Path, typer.Option(help="Text to decode, one sentence or prompt per line.")],
    lines: Annotated[int, typer.Option(min=1, help="Most lines to decode.")] = 128,
    batches: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,8,32",
    threads: Annotated[str, typer.Option(help="Numbers of CPU threads, comma-separated.")] = "1",
    mode: Annotated[
        str | None,
        typer.Option(help="ar, tandem, parallel, comma-separated; by default all available."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes over the text.")] = 3,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most new tokens for each input.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="native, torch or auto.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
) -> None:
    """Measure the decoding speed of a model by mode, batch size and number of threads.

    `outrider lab bench decode` compares a model with other engines.
    """
    from rich.table import Table

    from outrider import bench as timing
    from outrider.files.hub import model_folder
    from outrider.runtime.provenance import origin, write_result

    check_output("--json", json, text)
    sizes = read_numbers("--batches", batches, "1,8,32")
    counts = [
        check_bound("threads", count, THREADS)
        for count in read_numbers("--threads", threads, "1,2")
    ]
    modes = mode.split(",") if mode else None
    for word in modes or ():
        check({"mode": word})
    folder = model_folder(find_by_name(model, **lists))
    with measuring() as report:
        result = timing.bench(
            {folder.resolve().name: folder},
            timing.choose_lines(text, lines),
            batches=sizes,
            threads=counts,
            modes=modes,
            repeats=repeats,
            max_new_tokens=max_new_tokens,
            backend=backend,
            report=report,
        )
    columns = ("engine", "mode", "batch", "threads")
    heads = (*columns, "sentences/s", "times ar", "tokens/round", "same")
    table = Table(*heads, title=f"{folder.resolve().name}, {result['peak_rss_mib']:,.0f} MiB")
    table.columns[0].no_wrap = True
    for row in result["rows"]:
        table.add_row(
            *(str(row[key]) for key in columns),
            f"{row['sentences_per_second']:,.1f}",
            _format(row["times_ar"], ".2f"),
            _format(row["tokens_per_round"], ".2f"),
            _format(row["identical_to_own_greedy"], ".1%"),
        )
    new_console().print(table)
    if json is not None:
        write_result(json, result | origin(folder, text=text))
        typer.echo(f"wrote {json}", err=True)


def _format(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)
