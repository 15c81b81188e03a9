"""`outrider distill`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import new_console, resumable
from outrider.cli.decode_options import decodes


@decodes("strategy", "temperature", "beams", "seed")
def distill(
    options: dict[str, Any],
    model: Annotated[str, typer.Argument(help="Model folder, or id of a Hub model.")],
    data: Annotated[Path, typer.Option("--data", help="Prepared folder with its tokenizer.")],
    out: Annotated[Path, typer.Option("--out", help="Prepared folder to write.")],
    rows: Annotated[int | None, typer.Option(help="Only this many rows of each split.")] = None,
    consensus: Annotated[
        int | None,
        typer.Option(min=2, help="Take the text most similar to the others of so many hypotheses."),
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(max=0, help="Drop rows with a lower mean log-probability per token."),
    ] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a batch.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16, or int8 on the native core.")
    ] = "float32",
    threads: Annotated[int | None, typer.Option(help="CPU threads of each worker.")] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes, each with the model; more than one needs Ray.")
    ] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no report.")] = False,
) -> None:
    """Translate a prepared corpus, as training data for drafters, parallel decoders and students.

    Interrupted runs resume with the missing shards. A damaged shard of the corpus is set aside and
    the exit code is 2; `outrider jobs status` shows the progress.
    """
    from outrider.data.prepared import report
    from outrider.jobs.distill import DISTILL_TOKENS
    from outrider.jobs.distill import distill as distill_data

    if consensus is not None:
        key = "beams" if options.get("strategy") == "beam" else "candidates"
        options |= {key: options.get(key) or consensus, "n_best": consensus}
    with resumable("the finished shards are kept"):
        prepared = distill_data(
            model,
            data,
            out,
            rows=rows,
            consensus=consensus is not None,
            min_score=min_score,
            batch_tokens=batch_tokens or DISTILL_TOKENS,
            device=device,
            dtype=dtype,
            threads=threads,
            workers=workers,
            progress=not quiet,
            **options,
        )
    if not quiet:
        new_console(stderr=True).print(report(prepared))
    typer.echo(str(prepared.folder))
