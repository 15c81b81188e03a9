"""`outrider translate` and `outrider generate`: a trained model at work."""

import gzip
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from outrider.cli.decode_options import Model, check, decodes, print_statistics
from outrider.errors import ConfigError, DataError, ModelError, ResourceError

if TYPE_CHECKING:
    from outrider.decoding.statistics import Statistics
    from outrider.runtime import Generator, Result, Translator

__all__ = ["generate", "translate"]

BatchTokens = Annotated[int | None, typer.Option(min=1, help="Tokens held in memory at once.")]
Stats = Annotated[bool, typer.Option("--stats", help="Say on stderr what drafting did.")]


@decodes
def translate(
    model: Model,
    options: dict[str, Any],
    place: dict[str, Any],
    text: Annotated[list[str] | None, typer.Argument(help="Texts; else --in or stdin.")] = None,
    source: Annotated[Path | None, typer.Option("--in", help="Read lines from here.")] = None,
    target: Annotated[Path | None, typer.Option("--out", help="Write lines here.")] = None,
    n_best: Annotated[
        int | None, typer.Option(help="Write `line ||| text ||| score` for the n best.")
    ] = None,
    batch_tokens: BatchTokens = None,
    stats: Stats = False,
) -> None:
    """Translate: one output line per input line, in order, as soon as it is known."""
    if n_best is not None:
        options["n_best"] = n_best
    if text and source is not None:
        raise ConfigError("--in", "texts were given too; leave out one of them")
    if source is not None and target is not None and source.absolute() == target.absolute():
        raise ConfigError("--out", f"{target} is the input too and would be overwritten")
    check(options)
    translator = _load_translator(model, place)
    if batch_tokens is not None:
        options["batch_tokens"] = batch_tokens
    with ExitStack() as stack:
        lines: Iterator[str]
        if text:
            lines = iter(text)
        else:
            lines = _lines(stack.enter_context(_reader(source)))
            if source is None and sys.stdin.isatty():
                options["window"] = 1
        writer = stack.enter_context(_writer(target))
        if stats:
            options["stats"] = stack.enter_context(_statistics())
        _translate(translator, lines, writer, options)


@decodes
def generate(
    model: Model,
    options: dict[str, Any],
    place: dict[str, Any],
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; else from stdin.")] = None,
    batch_tokens: BatchTokens = None,
    stats: Stats = False,
) -> None:
    """Continue prompts with a language model; each is printed with its continuation."""
    check(options)
    generator = _load_generator(model, place)
    if batch_tokens is not None:
        options["batch_tokens"] = batch_tokens
    prompts = prompt or [sys.stdin.read().rstrip("\n")]
    with ExitStack() as stack:
        if stats:
            options["stats"] = stack.enter_context(_statistics())
        for start, (best, *_) in zip(prompts, generator.results(prompts, **options), strict=True):
            typer.echo(start + best.text)


@contextmanager
def _statistics() -> "Iterator[Statistics]":
    """Collect what drafting does, and print it when all is written."""
    from outrider.decoding.statistics import Statistics

    stats = Statistics()
    yield stats
    sys.stdout.flush()
    print_statistics(stats)


def _load_translator(model: str, options: dict[str, Any]) -> "Translator":
    from outrider.runtime import Translator, load

    loaded = load(model, **options)
    if not isinstance(loaded, Translator):
        raise ModelError(f"{model}: is a language model; use outrider generate")
    return loaded


def _load_generator(model: str, options: dict[str, Any]) -> "Generator":
    from outrider.runtime import Generator, load

    loaded = load(model, **options)
    if not isinstance(loaded, Generator):
        raise ModelError(f"{model}: is an encoder-decoder; use outrider translate")
    return loaded


def _translate(
    translator: "Translator", lines: Iterator[str], writer: TextIO, options: dict[str, Any]
) -> None:
    done = 0
    try:
        with _progress(writer) as advance:
            for results in translator.results_iter(lines, **options):
                writer.write(_format(results, done, n_best=options.get("n_best", 1)))
                writer.flush()
                done += 1
                advance()
    except KeyboardInterrupt:
        typer.echo(f"outrider: {done} lines are done", err=True)
        raise typer.Exit(130) from None


def _format(results: "list[Result]", line: int, *, n_best: int) -> str:
    texts = [result.text.replace("\n", " ") for result in results]
    if n_best == 1:
        return texts[0] + "\n"
    rows = zip(texts, results, strict=True)
    return "".join(f"{line} ||| {text} ||| {result.score:.4f}\n" for text, result in rows)


def _lines(reader: TextIO) -> Iterator[str]:
    return (line.rstrip("\n") for line in reader)


@contextmanager
def _reader(path: Path | None) -> Iterator[TextIO]:
    """Open the input; only a newline ends a line, and a bad byte costs one character."""
    if path is None:
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")
        yield sys.stdin
        return
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        file = opened(path, "rt", encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    with file:
        yield file


@contextmanager
def _writer(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    try:
        file = path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written ({error.strerror})") from None
    with file:
        yield file


@contextmanager
def _progress(writer: TextIO) -> Iterator[Any]:
    """Count lines on a terminal, unless the translations themselves appear there."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    console = Console(stderr=True)
    shown = console.is_terminal and not writer.isatty()
    columns = (SpinnerColumn(), MofNCompleteColumn(), "lines", TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("translating", total=None)
        yield lambda: progress.advance(task)
