"""`outrider bench`: how fast a model decodes on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.bounds import check_bound
from outrider.cli.console import check_output, new_console
from outrider.cli.measuring import measuring, read_numbers

__all__ = ["bench"]


def bench(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a model.")],
    text: Annotated[Path, typer.Option(help="Text to decode, a sentence or prompt a line.")],
    lines: Annotated[int, typer.Option(min=1, help="Decode at most so many lines.")] = 128,
    batches: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,8,32",
    threads: Annotated[str, typer.Option(help="Numbers of CPU threads, with commas.")] = "1",
    mode: Annotated[
        str | None, typer.Option(help="ar, tandem, parallel: several; by default all it can.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes over the text.")] = 3,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an output at most.")
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
    from outrider.runtime.provenance import origin

    check_output("--json", json, text)
    sizes = read_numbers("--batches", batches, "1,8,32")
    counts = [check_bound("threads", count) for count in read_numbers("--threads", threads, "1,2")]
    folder = model_folder(model)
    with measuring() as report:
        result = timing.bench(
            {folder.resolve().name: folder},
            timing.choose_lines(text, lines),
            batches=sizes,
            threads=counts,
            modes=mode.split(",") if mode else None,
            repeats=repeats,
            max_new_tokens=max_new_tokens,
            backend=backend,
            report=report,
        )
    heads = (
        "engine",
        "mode",
        "batch",
        "threads",
        "sentences/s",
        "times ar",
        "tokens/round",
        "same",
    )
    table = Table(*heads, title=f"{folder.resolve().name}, {result['peak_rss_mib']:,.0f} MiB")
    table.columns[0].no_wrap = True
    for row in result["rows"]:
        shown = (
            *(str(row[key]) for key in ("engine", "mode", "batch", "threads")),
            f"{row['sentences_per_second']:,.1f}",
            *(
                f"{row[key]:.2f}" if row[key] is not None else ""
                for key in ("times_ar", "tokens_per_round")
            ),
            ""
            if row["identical_to_own_greedy"] is None
            else f"{row['identical_to_own_greedy']:.1%}",
        )
        table.add_row(*shown)
    new_console().print(table)
    if json is not None:
        from outrider.runtime.provenance import write_result

        write_result(json, result | origin(folder, text=text))
        typer.echo(f"wrote {json}", err=True)
