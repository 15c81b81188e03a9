"""`outrider translate` and `outrider generate`: a trained model at work."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from outrider.cli.console import new_console
from outrider.cli.decode_options import MODEL_HELP, Model, check, decodes, print_statistics
from outrider.cli.output import (
    STDIN,
    check_output,
    check_parent,
    check_stdout,
    is_straight,
    open_output,
)
from outrider.errors import ConfigError, DataError, ModelError
from outrider.files import as_place, check_on_disk
from outrider.hub import DEMO_PAIRS, demo_folder

if TYPE_CHECKING:
    from outrider.decoding.statistics import Statistics
    from outrider.runtime import Generator, Translator

__all__ = ["generate", "translate"]

BatchTokens = Annotated[int | None, typer.Option(min=1, help="Tokens held in memory at once.")]
Stats = Annotated[bool, typer.Option("--stats", help="Say on stderr what drafting did.")]


@decodes
def translate(
    options: dict[str, Any],
    place: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help=f"{MODEL_HELP} Not needed with {DEMO_PAIRS}."),
    ] = None,
    text: Annotated[list[str] | None, typer.Argument(help="Texts; else --in or stdin.")] = None,
    source: Annotated[Path | None, typer.Option("--in", help="Read lines from here.")] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Write lines here: whole at the end, or not at all."),
    ] = None,
    n_best: Annotated[
        int | None, typer.Option(help="Write `line ||| text ||| score` for the n best.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option("--from", help="Language of the texts, as the model names it.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option("--to", help="Language to translate to: deu_Latn, de_DE, de.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--no-split", help="Translate lines whole, not sentence by sentence.")
    ] = False,
    batch_tokens: BatchTokens = None,
    shortlist: Annotated[
        bool,
        typer.Option("--shortlist", help="Score only the words that lex.*.bin lists, as Firefox."),
    ] = False,
    stats: Stats = False,
    shards: Annotated[
        str | None,
        typer.Option("--shards", help="Translate every file of this folder; --out is a folder."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="--shards: processes that each hold the model; several need Ray."),
    ] = None,
) -> None:
    """Translate: one output line per input line, in order, as soon as it is known.

    With --out the file appears when all lines are done: an error or Ctrl-C leaves what was there
    before. A pipe or a device is written straight. Input may be gzipped.

    With --shards a folder of files is translated, each into one of the same name in the folder
    --out; either may be in a store, such as s3://bucket/folder. Killed and given again, the command
    does what is missing; outrider jobs status tells how far it is.
    """
    if n_best is not None:
        options["n_best"] = n_best
    languages = {"source_language": source_language, "target_language": target_language}
    if model is None:
        model, languages = str(demo_folder(source_language, target_language)), {}
    if shards is not None:
        place |= {key: one for key, one in languages.items() if one is not None}
        place |= {"shortlist": True} if shortlist else {}
        options |= {"split": False} if whole else {}
        options |= {"batch_tokens": batch_tokens} if batch_tokens is not None else {}
        _check_alone({"TEXT": text, "--in": source, "--stats": stats})
        _translate_shards(model, shards, out, place, options, workers or 1)
        return
    if workers is not None:
        raise ConfigError("--workers", "is for many files; put them into a folder, and --shards")
    if text and source is not None:
        raise ConfigError("--in", "texts were given too; leave out one of them")
    target = None if out is None else Path(out)
    for key, path in (("--in", source), ("--out", out)):
        check_on_disk(key, path or "", "only --shards reads and writes there; give a path")
    check_output("--out", target, *([] if text else [source or STDIN]))
    if target is None:
        check_stdout("name a file with --out")
    check(options)
    if whole:
        options["split"] = False
    if batch_tokens is not None:
        options["batch_tokens"] = batch_tokens
    with ExitStack() as stack:
        lines: Iterator[str] = iter(text or ())
        if not text:
            from outrider.data.lines import open_lines
            from outrider.data.plain_text import check_plain_text

            raw = stack.enter_context(open_lines(source, check=check_plain_text))
            lines, options["ready"] = (line.decode("utf-8", "replace") for line in raw), raw.ready
        if shortlist:
            place["shortlist"] = True
        translator = _load_translator(model, {**place, **languages})
        if stats:
            options["stats"] = stack.enter_context(_statistics())
        from outrider.runtime.scripts import watched

        reads = (source_language,) if source_language else translator.reads
        _translate(translator, watched(lines, reads), target, options)


def _check_alone(others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value:
            raise ConfigError("--shards", f"{name} was given too; leave out one of them")


def _translate_shards(
    model: str,
    source: str,
    out: str | None,
    place: dict[str, Any],
    options: dict[str, Any],
    workers: int,
) -> None:
    if out is None:
        raise ConfigError("--out", "is required with --shards: the folder to write")
    check({key: one for key, one in options.items() if key not in ("split", "batch_tokens")})
    if isinstance(place_out := as_place(out), Path):
        check_parent(place_out)
    from outrider.jobs.translate import translate_shards

    try:
        folder = translate_shards(model, source, out, place=place, workers=workers, **options)
    except KeyboardInterrupt:
        typer.echo("outrider: the finished files are kept; start again to go on", err=True)
        raise typer.Exit(130) from None
    typer.echo(str(folder))


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
    check_stdout("redirect it to a file")
    check(options)
    generator = _load_generator(model, place)
    if batch_tokens is not None:
        options["batch_tokens"] = batch_tokens
    prompts = prompt or [_read_prompt()]
    with ExitStack() as stack:
        if stats:
            options["stats"] = stack.enter_context(_statistics())
        for start, (best, *_) in zip(prompts, generator.results(prompts, **options), strict=True):
            typer.echo(start + best.text)


def _read_prompt() -> str:
    """Read all of standard input as one prompt; its last line end is none of it."""
    from outrider.data.lines import LINE_BYTES, open_lines

    lines: list[bytes] = []
    size = 0
    with open_lines(None) as raw:
        for line in raw:
            lines.append(line)
            size += len(line) + 1
            if size > LINE_BYTES:
                message = f"a prompt of more than {LINE_BYTES:,} bytes; give a shorter one"
                raise DataError(f"standard input: {message}")
    return b"\n".join(lines).decode("utf-8", "replace").rstrip("\n")


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
    translator: "Translator", lines: Iterator[str], target: Path | None, options: dict[str, Any]
) -> None:
    from outrider.runtime.result import format_results

    done = 0
    try:
        with open_output(target) as writer, _progress(writer) as advance:
            for results in translator.results_iter(lines, **options):
                writer.write(format_results(results, done, n_best=options.get("n_best", 1)))
                writer.flush()
                done += 1
                advance()
    except KeyboardInterrupt:
        left = f"; {target} was not written" if target and not is_straight(target) else ""
        typer.echo(f"outrider: {done} lines are done{left}", err=True)
        raise typer.Exit(130) from None


@contextmanager
def _progress(writer: TextIO) -> Iterator[Any]:
    """Count lines on a terminal, unless the translations themselves appear there."""
    if not sys.stderr.isatty() or writer.isatty():
        yield lambda: None
        return
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    console = new_console(stderr=True)
    shown = console.is_terminal and not writer.isatty()
    columns = (SpinnerColumn(), MofNCompleteColumn(), "lines", TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("translating", total=None)
        yield lambda: progress.advance(task)
