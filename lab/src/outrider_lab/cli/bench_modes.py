"""`outrider lab bench modes` and `bench exact`: quality, speed and exactness of each mode."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import (
    check_output,
    measuring,
    new_console,
    read_numbers,
    report_interrupt,
)
from outrider.cli.evaluate import Tokenize
from outrider.errors import ConfigError
from outrider.options import MOST_THREADS

if TYPE_CHECKING:
    from outrider.runtime import Generator, Translator

Folder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")]
Source = Annotated[Path, typer.Option(help="Lines to decode, plain or .gz.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result here.")]
Threads = Annotated[int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first lines.")]

_QUICK = {"lines": 200, "sentences": 32, "repeats": 3}


def bench_modes(
    model: Folder,
    source: Source,
    reference: Annotated[Path, typer.Option(help="Reference translations, line by line.")],
    json: Json = None,
    png: Annotated[Path | None, typer.Option(help="Draw quality against speed here.")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes to time, comma-separated.")] = "1,8,32",
    sentences: Annotated[int, typer.Option(min=1, help="Lines for the speed measurement.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each mode.")] = 5,
    tokenize: Tokenize = "auto",
    threads: Threads = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few lines and repeats.")] = False,
) -> None:
    """Measure quality and speed of every decoding mode of a model, relative to greedy."""
    batches = read_numbers("--batch", batch, "1,8,32")
    for option, path in (("--json", json), ("--png", png)):
        check_output(option, path, source, reference)
    sources, references = _read(source), _read(reference)
    if len(sources) != len(references):
        raise ConfigError(
            "--reference",
            f"{source} has {len(sources)} lines and {reference} has {len(references)}; "
            "line n of one must be the translation of line n of the other",
        )
    if quick:
        sources, references = sources[: _QUICK["lines"]], references[: _QUICK["lines"]]
        sentences, repeats = _QUICK["sentences"], _QUICK["repeats"]

    from outrider.runtime.provenance import origin
    from outrider_lab.bench.modes.measure import measure_modes

    translator = _load_translator(model, threads)
    with measuring() as report:
        result = measure_modes(
            translator,
            sources,
            references,
            batches=batches,
            sentences=sentences,
            repeats=repeats,
            tokenize=tokenize,
            report=report,
        )
    result |= origin(model, source=source, reference=reference)
    _print_modes(result)
    _write(result, json)
    if png is not None:
        from outrider_lab.bench.modes.picture import draw_modes

        draw_modes(result, png, title=f"{result['model']}: quality against speed")
        typer.echo(f"wrote {png}", err=True)


def bench_exact(
    model: Folder,
    source: Source,
    json: Json = None,
    batch: Annotated[int, typer.Option(min=1, help="Lines per batch.")] = 1,
    draft_tokens: Annotated[
        int | None, typer.Option(help="Tokens per draft; by default 8.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Compute near-ties again, token by token.")
    ] = False,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum new tokens per line.")
    ] = None,
    lines: Limit = None,
    dtype: Annotated[
        str, typer.Option(help="int8 (native core), float32, bfloat16 or float16.")
    ] = "float32",
    threads: Threads = None,
) -> None:
    """Count the lines for which tandem decoding gives exactly the tokens of greedy decoding."""
    check_output("--json", json, source)
    texts = _read(source)[:lines]

    from rich.progress import Progress

    from outrider.runtime import load
    from outrider.runtime.provenance import origin
    from outrider_lab.bench.modes.exactness import compare_with_greedy

    loaded = load(model, dtype=dtype, threads=threads)
    console, status = new_console(stderr=True), ["nothing yet"]
    with (
        report_interrupt(status),
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("decoding twice", total=len(texts))

        def advance(rows: int) -> None:
            progress.advance(task, rows)
            done = progress.tasks[task].completed
            status[0] = f"{done:.0f} of {len(texts)} lines were compared"

        result = compare_with_greedy(
            loaded,
            texts,
            batch=batch,
            draft_tokens=draft_tokens,
            strict=strict,
            max_new_tokens=max_new_tokens,
            advance=advance,
        )
    result = {"task": "exactness", "dtype": dtype, **result, **origin(model, source=source)}
    _print_exactness(result)
    _write(result, json)


def _read(path: Path) -> list[str]:
    from outrider.data.lines import text_lines

    return text_lines(path)


def _load_translator(model: Path, threads: int | None) -> "Translator":
    from outrider.errors import ModelError
    from outrider.runtime import Translator, load

    loaded: Translator | Generator = load(model, dtype="float32", threads=threads)
    if not isinstance(loaded, Translator):
        raise ModelError(f"{model}: is a language model; bench modes needs a translation model")
    return loaded


def _write(result: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        from outrider.runtime.provenance import write_result

        write_result(path, result)
        typer.echo(f"wrote {path}", err=True)


def _print_modes(result: dict[str, Any]) -> None:
    from rich.table import Table

    quality = Table(
        *("mode", "BLEU", "chrF", "identical", "repeated", "length"),
        title=f"{result['model']}: quality, {result['lines']} lines",
    )
    sizes = [f"batch {speed['batch']}" for speed in result["modes"][0]["speed"]]
    speed = Table("mode", "tokens a round", *sizes, title="speed, relative to greedy")
    for mode in result["modes"]:
        quality.add_row(
            mode["name"],
            f"{mode['bleu']:.2f}",
            f"{mode['chrf']:.2f}",
            f"{mode['identical_share']:.1%}",
            f"{mode['repetition_rate']:.2%}",
            f"{mode['length_ratio']:.3f}",
        )
        ratios = [timed["ratio_to_greedy"] for timed in mode["speed"]]
        shown = ["differs" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        rounds = f"{mode['tokens_per_round']:.2f}" if mode["tokens_per_round"] else ""
        speed.add_row(mode["name"], rounds, *shown)
    console = new_console()
    console.print(quality)
    console.print(speed)


def _print_exactness(result: dict[str, Any]) -> None:

    console = new_console(highlight=False)
    statistics = result["statistics"]
    console.print(
        f"{result['identical']} of {result['lines']} lines are identical "
        f"({result['identical_share']:.2%}), {result['dtype']}; "
        f"{statistics['tokens_per_round']:.2f} tokens a round, "
        f"{statistics['rechecked']} near-ties computed again"
    )
    for line in result["differing"]:
        console.print(f"line {line['line']}, token {line['first_differing_token']}", markup=False)
        for name in ("source", "greedy", "tandem"):
            console.print(f"  {name}: {line[name]}", markup=False)
