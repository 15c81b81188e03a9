"""`outrider translate` and `outrider generate`."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import (
    STDIN,
    StoppedError,
    check_output,
    check_parent,
    check_stdout,
    is_straight,
    open_output,
    resumable,
)
from outrider.cli.decode_options import (
    MODEL_HELP,
    Model,
    check,
    decodes,
    names_models,
    places,
    print_statistics,
)
from outrider.errors import ConfigError, DataError, ModelError
from outrider.files import as_place, check_on_disk

if TYPE_CHECKING:
    from outrider.decoding.statistics import Statistics
    from outrider.jobs.text_file import Unfinished
    from outrider.runtime import Translator
    from outrider.text.glossary import Glossary

SPEED_OPTIONS = {"device", "threads", "batch_tokens"}
"""Options that change the speed, but not the translation."""
NOTICES = {
    "loop": "the translation repeats itself",
    "truncated": "the translation stops early",
    "empty": "the translation has no words",
    "copied": "the translation repeats the source",
    "language": "the translation is in another language",
}
"""Messages by fault."""
BatchTokens = Annotated[int | None, typer.Option(min=1, help="Tokens of a batch.")]
Stats = Annotated[bool, typer.Option("--stats", help="Print statistics of drafting on stderr.")]


@names_models
@places
@decodes()
def translate(
    options: dict[str, Any],
    place: dict[str, Any],
    lists: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help=f"{MODEL_HELP} Not needed with --from and --to."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Argument(help="Texts or documents; else --in or stdin.")
    ] = None,
    source: Annotated[Path | None, typer.Option("--in", help="Read lines of this file.")] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Write lines to this file, which appears when all are done."),
    ] = None,
    source_language: Annotated[
        str | None, typer.Option("--from", help="Source language: de, or the model's own name.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option("--to", help="Target language: deu_Latn, de_DE, de.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--no-split", help="Translate lines whole, not sentence by sentence.")
    ] = False,
    glossary: Annotated[
        Path | None,
        typer.Option(help="Terms to obey: TSV (source, target, perhaps inflect), TMX or TBX."),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Translate placeholders, tags and addresses as words."),
    ] = False,
    no_guard: Annotated[
        bool,
        typer.Option("--no-guard", help="Keep translations with faults instead of trying again."),
    ] = False,
    batch_tokens: BatchTokens = None,
    shortlist: Annotated[
        bool | None,
        typer.Option(help="Score only the tokens of lex.*.bin; by default if it is there."),
    ] = None,
    stats: Stats = False,
    shards: Annotated[
        str | None,
        typer.Option("--shards", help="Translate every file of this folder; --out is a folder."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="--shards: number of processes; more than one needs Ray."),
    ] = None,
) -> None:
    """Translate: one output line per input line, in order, as soon as it is done.

    A document (docx, html, srt, po, md and others, see the docs) comes back in its format: with
    --to de, report.docx as report.de.docx beside it, or as --out names. The same command resumes an
    interrupted one.

    Without --model, --from and --to choose one by name (see outrider models), which is downloaded
    if it is missing.

    Placeholders ({name}, %s), tags, addresses, code and emoji of a text stay as they are.

    A sentence whose translation repeats itself, stops early, has no words, repeats the source or is
    in another language is decoded another way; if no way corrects it, a notice on stderr names its
    line. Terms of a --glossary are translated as it says; a notice names those that are not.

    With --out the file appears when all lines are done: an error or Ctrl-C leaves an old file
    unchanged, and with --in the same command resumes an interrupted one. A pipe or a device is
    written directly. Input may be gzipped.

    With --shards every file of a folder is translated into a file of the same name in the folder
    --out; either may be in a store, such as s3://bucket/folder. The same command resumes an
    interrupted one; outrider jobs status shows the progress.
    """
    languages = {"source_language": source_language, "target_language": target_language}
    pair = dict(languages)
    documents = _documents(text or [])
    if model is None or ("/" not in model and not Path(model).exists()):
        from outrider.cli.pull import find_by_name, pair_name

        given = model or pair_name(source_language, target_language)
        model = find_by_name(given, **lists)
        languages = languages if model == given else {}
    if shards is not None:
        place |= {key: value for key, value in languages.items() if value is not None}
        place |= {"shortlist": shortlist} if shortlist is not None else {}
        check(options)
        options |= {"split": False} if whole else {}
        options |= {} if no_guard else {"guard": True}
        options |= {"batch_tokens": batch_tokens} if batch_tokens is not None else {}
        _check_alone({"TEXT": text, "--in": source, "--stats": stats, "--glossary": glossary})
        _translate_shards(model, shards, out, place, options, workers or 1)
        return
    place |= languages
    if workers is not None:
        raise ConfigError("--workers", "has no effect without --shards; leave it out")
    if text and source is not None:
        raise ConfigError("--in", "cannot be combined with texts; leave out one of them")
    if documents:
        from outrider.cli.documents import translate_documents

        check(options)
        place |= {"shortlist": shortlist} if shortlist is not None else {}
        options |= {"split": False} if whole else {}
        options |= {} if no_guard else {"guard": True}
        options |= {"batch_tokens": batch_tokens} if batch_tokens is not None else {}
        options |= {} if glossary is None else {"glossary": _read_terms(glossary, **pair)}
        kept = _determining(options, place)
        translate_documents(
            documents,
            out,
            target_language,
            load=partial(_load, model, place),
            origin=lambda: {"model": _weights_of(model), "options": kept},
            options=options,
            progress=partial(_progress, visible=True),
        )
        return
    target = None if out is None else Path(out)
    for key, path in (("--in", source), ("--out", out)):
        if path is not None:
            check_on_disk(key, path, "only --shards supports stores; give a path")
    check_output("--out", target, *([] if text else [source or STDIN]))
    if target is None:
        check_stdout("name a file with --out")
    check(options)
    if whole:
        options["split"] = False
    if not no_guard:
        options["guard"] = True
    if not plain:
        options["marks"] = True
    if batch_tokens is not None:
        options["batch_tokens"] = batch_tokens
    with ExitStack() as stack:
        lines: Iterator[str] = iter(text or ())
        total, origin = len(text) if text else None, None
        if shortlist is not None:
            place["shortlist"] = shortlist
        if glossary is not None:
            options["glossary"] = _read_terms(glossary, **pair)
        if source is not None and source.is_file():
            total, origin = _inspect(source, target, model, _determining(options, place))
        if not text:
            from outrider.data.lines import check_plain_text, open_lines

            raw = stack.enter_context(open_lines(source, check=check_plain_text))
            lines, options["ready"] = (line.decode("utf-8", "replace") for line in raw), raw.ready
        from outrider.text.language import watched

        translator = _load(model, place)
        if stats:
            options["stats"] = stack.enter_context(_statistics())
        reads = (source_language,) if source_language else translator.reads
        lines = watched(lines, reads)
        _translate(translator, lines, target, options, total=total, origin=origin)


def _load(model: str, place: dict[str, Any]) -> "Translator":
    from outrider.runtime import Translator, load

    translator = load(model, **place)
    if not isinstance(translator, Translator):
        raise ModelError(f"{model}: is a language model; use outrider generate")
    return translator


def _read_terms(
    path: Path, *, source_language: str | None, target_language: str | None
) -> "Glossary":
    from outrider.text.glossary import read_glossary

    return read_glossary(path, source=source_language, target=target_language)


def _determining(options: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
    """Return the options that determine translations, as JSON."""
    values = {**options, **place}
    if "glossary" in values:
        values["glossary"] = [list(entry) for entry in values["glossary"].entries]
    return {key: value for key, value in values.items() if key not in SPEED_OPTIONS}


def _weights_of(model: str) -> Any:
    """Return what identifies the weights of a model."""
    from outrider.files.hub import model_folder
    from outrider.formats.folder import weights_of

    return weights_of(model_folder(model))


def _documents(texts: list[str]) -> list[Path]:
    """Return the arguments as files; none if they are texts."""
    if not any(re.search(r"\.[A-Za-z]{2,10}$", text) for text in texts):
        return []
    from outrider.cli.documents import document_paths

    return document_paths(texts)


def _inspect(
    source: Path, target: Path | None, model: str, decode: dict[str, Any]
) -> tuple[int | None, Callable[[], dict[str, Any]] | None]:
    """Count the lines of a file, if needed; also return what its translation depends on."""
    resumes = target is not None and not is_straight(target)
    if not resumes and not sys.stderr.isatty():
        return None, None
    from outrider.files import LocalFolder
    from outrider.jobs.text_file import look_at

    total, sha256, fault = look_at(LocalFolder(source.parent), source.name)
    if fault:
        raise DataError(fault)
    origin = {"input": sha256, "options": decode}
    return total, (lambda: {**origin, "model": _weights_of(model)}) if resumes else None


def _check_alone(others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value:
            raise ConfigError("--shards", f"cannot be combined with {name}; leave out one of them")


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
    if isinstance(folder_out := as_place(out), Path):
        check_parent(folder_out)
    from outrider.jobs.translate import translate_shards

    with resumable("the finished files are kept"):
        folder = translate_shards(model, source, out, place=place, workers=workers, **options)
    typer.echo(str(folder))


@places
@decodes(without=["n_best"])
def generate(
    model: Model,
    options: dict[str, Any],
    place: dict[str, Any],
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; else from stdin.")] = None,
    batch_tokens: BatchTokens = None,
    stats: Stats = False,
) -> None:
    """Continue prompts with a language model; print each with its continuation."""
    check_stdout("redirect it to a file")
    check(options)
    from outrider.runtime import Generator, load

    generator = load(model, **place)
    if not isinstance(generator, Generator):
        raise ModelError(f"{model}: is an encoder-decoder; use outrider translate")
    if batch_tokens is not None:
        options["batch_tokens"] = batch_tokens
    prompts = prompt or [_read_prompt()]
    with ExitStack() as stack:
        if stats:
            options["stats"] = stack.enter_context(_statistics())
        for start, (best, *_) in zip(prompts, generator.results(prompts, **options), strict=True):
            typer.echo(start + best.text)


def _read_prompt() -> str:
    """Read standard input as one prompt, without the last line end."""
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
    """Collect statistics and print them at the end."""
    from outrider.decoding.statistics import Statistics

    stats = Statistics()
    yield stats
    sys.stdout.flush()
    print_statistics(stats)


def _translate(
    translator: "Translator",
    lines: Iterator[str],
    target: Path | None,
    options: dict[str, Any],
    *,
    total: int | None,
    origin: Callable[[], dict[str, Any]] | None,
) -> None:
    """Write the translations; with an `origin`, resume an interrupted run."""
    from outrider.runtime.result import format_results

    done, n_best, unfinished = 0, options.get("n_best", 1), None
    try:
        with ExitStack() as stack:
            if target is not None and origin is not None:
                from outrider.jobs.text_file import open_unfinished

                unfinished = stack.enter_context(open_unfinished(target, origin))
                done = unfinished.rows
                lines, options["first"] = islice(lines, done, None), done
                _report_resumed(unfinished)
            writer: Any = unfinished or stack.enter_context(open_output(target))
            left = None if total is None else total - done
            visible = unfinished is not None or not writer.isatty()
            advance = stack.enter_context(_progress(left, visible=visible))
            for results in translator.results_iter(lines, **options):
                writer.write(format_results(results, done, n_best=n_best))
                if unfinished is None:
                    writer.flush()
                done += 1
                for fault in results[0].faults:
                    typer.echo(f"outrider: line {done:,}: {NOTICES[fault]}", err=True)
                for term, wanted in results[0].missing_terms:
                    message = f"{term!r} is not translated as {wanted!r}"
                    typer.echo(f"outrider: line {done:,}: {message}", err=True)
                advance(1)
    except KeyboardInterrupt:
        kept = unfinished is not None and done > 0
        raise StoppedError(_interrupted_at(done, total, target, kept=kept)) from None


def _report_resumed(unfinished: "Unfinished") -> None:
    if unfinished.note:
        message = f"{unfinished.folder} is not used: {unfinished.note}; starting again"
    elif unfinished.rows:
        message = f"{unfinished.rows:,} lines are done in {unfinished.folder}; continuing"
    else:
        return
    typer.echo(f"outrider: {message}", err=True)


def _interrupted_at(done: int, total: int | None, target: Path | None, *, kept: bool) -> str:
    count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    hint = ""
    if target and not is_straight(target):
        hint = "; the same command continues" if kept else f"; {target} was not written"
    return f"{count} lines are done{hint}"


@contextmanager
def _progress(total: int | None, *, visible: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if stderr is a terminal."""
    if not visible or not sys.stderr.isatty():
        yield lambda rows: None
        return
    from outrider.data.progress import show_stages

    with show_stages(True) as stages:
        yield stages.start("translate", total)
        stages.finish()
