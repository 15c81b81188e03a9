"""`outrider evaluate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import check_output, new_console
from outrider.cli.decode_options import check, names_models
from outrider.cli.pull import find_by_name
from outrider.errors import ConfigError
from outrider.evaluation.metrics import check_tokenizer


def _known(name: str) -> str:
    try:
        return check_tokenizer(name)
    except ValueError as error:
        raise ConfigError("--tokenize", str(error)) from None


Tokenize = Annotated[
    str,
    typer.Option(
        help="SacreBLEU tokenizer; auto depends on the script of the references.", callback=_known
    ),
]


@names_models
def evaluate(
    lists: dict[str, Any],
    name: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model folder, or a pair such as de-en.")
    ],
    source: Annotated[
        Path | None, typer.Option(help="Sentences to translate, one per line, plain or .gz.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Reference translations, line by line.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Text for the perplexity of a language model or masked model."),
    ] = None,
    tail: Annotated[
        float, typer.Option(help="With --text: use only this last share.", min=1e-6, max=1.0)
    ] = 1.0,
    ngram: Annotated[
        Path | None,
        typer.Option(help="With --text: also score an n-gram model of this text as a baseline."),
    ] = None,
    order: Annotated[int, typer.Option(help="With --ngram: n.", min=1, max=9)] = 3,
    beams: Annotated[int, typer.Option(help="Beams of the search; 1 is greedy.", min=1)] = 5,
    length_penalty: Annotated[
        float, typer.Option(help="Above 1 prefers longer translations, below 1 shorter ones.")
    ] = 1.0,
    metric: Annotated[
        str,
        typer.Option(
            help="bleu, chrf, rouge, accuracy, macro_f1, exact_match, token_f1; comma-separated."
        ),
    ] = "bleu,chrf",
    tokenize: Tokenize = "auto",
    whole: Annotated[
        bool, typer.Option("--no-split", help="Translate lines whole, not sentence by sentence.")
    ] = False,
    comet: Annotated[
        str | None,
        typer.Option(help="Also score with this COMET model: Unbabel/wmt22-comet-da, or a file."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Compute in float32, bfloat16, float16, or int8 (native core).")
    ] = "float32",
    output: Annotated[
        Path | None, typer.Option(help="Write the translations to this file, when all are done.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
) -> None:
    """Score a model: sacreBLEU, chrF and other metrics of its translations, or perplexity.

    Summaries are scored by --metric rouge, labels by --metric accuracy,macro_f1, answers by
    --metric exact_match,token_f1.
    """
    if (text is None) == (source is None):
        raise ConfigError("--source", "give --source and --reference, or --text")
    if ngram is not None and text is None:
        raise ConfigError("--ngram", "is for --text; leave it out")
    if (source is None) != (reference is None):
        raise ConfigError("--reference", "source and reference belong together; give both")
    if text is not None and (dtype != "float32" or comet is not None):
        key = "--dtype" if comet is None else "--comet"
        raise ConfigError(key, "is for translations, not for --text; leave it out")
    if text is not None and metric != "bleu,chrf":
        raise ConfigError("--metric", "is for --source, not for --text; leave it out")
    model = Path(find_by_name(name, **lists))
    check_output("--output", output, source, reference)
    check_output("--json", json, source, reference, text, ngram, output)
    if text is not None:
        result = _evaluate_text(model, text, tail, ngram, order)
    else:
        assert source is not None
        assert reference is not None
        result = _evaluate_translation(
            model,
            source,
            reference,
            _decode(beams, length_penalty),
            tokenize=tokenize,
            metrics=metric.split(","),
            split=False if whole else None,
            dtype=dtype,
            comet=comet,
            output=output,
        )
    _print_table(result)
    if json is not None:
        from outrider.runtime.provenance import write_result

        write_result(json, result)


def _decode(beams: int, length_penalty: float) -> dict[str, Any]:
    if beams == 1:
        if length_penalty != 1.0:
            raise ConfigError("--length-penalty", "has no effect with --beams 1")
        return {"strategy": "greedy"}
    return {"strategy": "beam", "beams": beams, "length_penalty": length_penalty}


def _evaluate_text(
    model: Path, text: Path, tail: float, ngram: Path | None, order: int
) -> dict[str, Any]:
    from outrider.torch.evaluation.likelihood import evaluate_text

    return evaluate_text(model, text=text, tail=tail, counted=ngram, order=order)


def _evaluate_translation(
    model: Path,
    source: Path,
    reference: Path,
    decode: dict[str, Any],
    **options: Any,
) -> dict[str, Any]:
    from rich.progress import Progress

    from outrider.evaluation.evaluate import evaluate_translation

    config = check(decode)
    console = new_console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("translating", total=None)
        return evaluate_translation(
            model,
            source=source,
            reference=reference,
            decode=config,
            **options,
            advance=lambda rows: progress.advance(task, rows),
        )


def _print_table(result: dict[str, Any]) -> None:
    from rich.table import Table

    from outrider.runtime.provenance import show_score

    table = Table("measure", "value", title=f"{result['model']}: {result['task']}")
    for name, value in result["scores"].items():
        table.add_row(name, show_score(value))
    table.add_row("seconds", f"{result['seconds']:,.1f}")
    new_console().print(table)
