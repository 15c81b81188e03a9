"""`outrider bench decode`: how fast a model decodes, beside transformers' own `generate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.evaluation.decode_speed import Workload
    from outrider.models import Seq2Seq

__all__ = ["bench_decode"]


def bench_decode(
    model: Annotated[Path | None, typer.Argument(help="Folder of a trained model.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    random: Annotated[
        str | None, typer.Option(help="Build a model of random weights instead: base.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Sentences to translate, one a line.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of both.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute in all.")] = False,
) -> None:
    """Measure greedy decoding at batch 1, 8 and 32 and check that the output is the same."""
    if (model is None) == (random is None):
        raise ConfigError("MODEL", "give a model folder, or --random base to build one")
    if random not in (None, "base"):
        raise ConfigError("--random", f"got {random!r}, expected base")
    if random is not None and source is not None:
        raise ConfigError("--source", "has no effect with --random; leave one of them out")
    result = _run(model, source, threads, quick)
    _print_table(result)
    if json is not None:
        from outrider.evaluation.results import write_result

        write_result(json, result)


def _run(
    folder: Path | None, source: Path | None, threads: int | None, quick: bool
) -> dict[str, Any]:
    import torch
    from rich.console import Console
    from rich.progress import Progress

    from outrider.evaluation.decode_speed import decode_speed, random_base, random_workload

    if threads is not None:
        torch.set_num_threads(threads)
    if folder is None:
        network = random_base()
        workload = random_workload(network.config.vocab_size, 1, rows=32 if quick else 64)
    else:
        network, workload = _load(folder, source)
    rounds, repeats, seconds = (2, 3, 9.0) if quick else (8, 7, 120.0)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("decoding", total=3 * (repeats + 1))
        result = decode_speed(
            network,
            workload,
            rounds=rounds,
            repeats=repeats,
            seconds=seconds,
            advance=lambda: progress.advance(task),
        )
    return {"model": str(folder) if folder else "random base", **result}


def _load(folder: Path, source: Path | None) -> "tuple[Seq2Seq, Workload]":
    from outrider.data.tokenizer import load_tokenizer
    from outrider.errors import DataError, ModelError
    from outrider.evaluation.decode_speed import SENTENCES, Workload
    from outrider.evaluation.evaluate import read_text
    from outrider.models import Seq2Seq, load_model

    network = load_model(folder)
    if not isinstance(network, Seq2Seq):
        raise ModelError(f"{folder}: is a language model; bench decode takes an encoder-decoder")
    tokenizer = load_tokenizer(folder)
    lines = list(SENTENCES)
    if source is not None:
        lines = [line for line in read_text(source).splitlines() if line.strip()]
        if not lines:
            raise DataError(f"{source}: holds no sentence")
    rows = tokenizer.encode_batch(lines)
    return network, Workload([[*ids[:255], tokenizer.eos_id] for ids in rows])


def _print_table(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "batch", "engine", "sentences/s", "ratio to generate", "identical", title=result["model"]
    )
    for row in result["rows"]:
        table.add_row(
            str(row["batch"]),
            row["engine"],
            f"{row['sentences_per_second']:,.2f}",
            f"{row['ratio_to_hf_generate']:.2f}",
            "yes" if row["identical"] else "no",
        )
    Console().print(table)
