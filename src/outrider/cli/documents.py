"""Documents of `outrider translate`: files that come back in their format."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import typer

from outrider.cli.console import StoppedError, check_output, check_parent
from outrider.documents import FORMATS, REFUSED, Document, read_document
from outrider.documents.marked import MarkedText, Span
from outrider.documents.translate import translate_marked
from outrider.errors import ConfigError, DataError, OutriderError
from outrider.files import explained, read_limited
from outrider.jobs.text_file import Unfinished, open_unfinished
from outrider.languages import normalise_code
from outrider.runtime import Result, Translator

LARGEST = 512 << 20
"""Limit of a file, in bytes."""
WINDOW = 64
"""Texts that are translated together and then saved."""


def document_paths(texts: Sequence[str]) -> list[Path]:
    """Return the arguments as files; none if they are texts.

    An argument is a file if it has the suffix of a document, and either exists or holds no space.
    """
    paths = [Path(text) for text in texts]
    named = [
        path.suffix.lower() in (*FORMATS, *REFUSED) and (" " not in text or path.is_file())
        for text, path in zip(texts, paths, strict=True)
    ]
    if any(named) and not all(named):
        other = texts[named.index(False)]
        raise ConfigError("TEXT", f"{other[:60]!r} is not a document, as the others are")
    return paths if any(named) else []


def output_paths(paths: Sequence[Path], out: str | None, target: str | None) -> list[Path]:
    """Return where the translations are written, and check that they can be.

    Args:
        paths: The documents.
        out: A file or a folder; None to write `report.de.docx` beside `report.docx`.
        target: Language of the translations; None for `report.translated.docx`.
    """
    if out is None or len(paths) > 1 or Path(out).is_dir():
        code = "translated" if target is None else normalise_code(target)
        names = [f"{path.stem}.{code}{path.suffix}" for path in paths]
        folders = [path.parent if out is None else Path(out) for path in paths]
        outs = [folder / name for folder, name in zip(folders, names, strict=True)]
    else:
        outs = [Path(out)]
    for path, written in zip(paths, outs, strict=True):
        if written.suffix.lower() != path.suffix.lower():
            raise ConfigError("--out", f"{written} has another suffix than {path.name}")
        if outs.count(written) > 1:
            raise ConfigError("--out", f"two documents would be written to {written}")
        check_output("--out", written, *paths)
        check_parent(written)
    return outs


def translate_documents(
    paths: Sequence[Path],
    out: str | None,
    target: str | None,
    *,
    load: Callable[[], Translator],
    origin: Callable[[], dict[str, Any]],
    options: Mapping[str, Any],
    progress: Callable[[int], AbstractContextManager[Callable[[int], None]]],
) -> None:
    """Write the translations of documents and print their paths.

    Args:
        paths: The documents.
        out: As in `output_paths`.
        target: Language of the translations.
        load: Loads the model, once the documents are read.
        origin: Returns everything that determines translations, except the document.
        options: Options of `Translator.results`.
        progress: Opens a progress bar of so many texts, and returns the function that advances it.
    """
    if options.get("n_best", 1) > 1:
        raise ConfigError("--n-best", "has no effect on documents; leave it out")
    documents = [_read(path, target) for path in paths]
    outs = output_paths(paths, out, target)
    translator = load()
    for (document, sha256), written in zip(documents, outs, strict=True):
        kept = partial(_with_input, origin, sha256)
        _translate(translator, document, written, kept, options, progress)
        typer.echo(str(written))


def _with_input(origin: Callable[[], dict[str, Any]], sha256: str) -> dict[str, Any]:
    return {"input": sha256, **origin()}


def _read(path: Path, target: str | None) -> tuple[Document, str]:
    """Read a document; also return its checksum."""
    with explained(path):
        content = read_limited(path, limit=LARGEST, error=DataError)
    try:
        document = read_document(content, path.name, target or "")
    except OutriderError as error:
        raise DataError(f"{path}: {error}") from error
    return document, hashlib.sha256(content).hexdigest()


def _translate(
    translator: Translator,
    document: Document,
    out: Path,
    origin: Callable[[], dict[str, Any]],
    options: Mapping[str, Any],
    progress: Callable[[int], AbstractContextManager[Callable[[int], None]]],
) -> None:
    """Write the translation of a document; an interrupted run is resumed."""
    texts = document.texts

    def translate(batch: list[str], *, alignment: bool = False) -> list[Result]:
        results = translator.results(batch, alignment=alignment, **options)
        for text, (best, *_) in zip(batch, results, strict=True):
            for fault in best.faults:
                typer.echo(f"outrider: {out.name}: {fault}: {text[:60]}", err=True)
            for term, wanted in best.missing_terms:
                message = f"{term!r} is not translated as {wanted!r}: {text[:60]}"
                typer.echo(f"outrider: {out.name}: {message}", err=True)
        return [best for best, *_ in results]

    def write(lines: bytes) -> bytes:
        return document.write([_read_line(line) for line in lines.splitlines()])

    aligned = partial(translate, alignment=True)
    try:
        with open_unfinished(out, origin, convert=write) as unfinished:
            _report(unfinished)
            with progress(len(texts) - unfinished.rows) as advance:
                for first in range(unfinished.rows, len(texts), WINDOW):
                    window = texts[first : first + WINDOW]
                    for text in translate_marked(window, translate, aligned):
                        unfinished.write(_line(text))
                    advance(len(window))
    except KeyboardInterrupt as error:
        done = f"{unfinished.rows:,} of {len(texts):,} texts of {out.name} are done"
        raise StoppedError(f"{done}; the same command continues") from error


def _report(unfinished: Unfinished) -> None:
    if unfinished.note:
        message = f"{unfinished.folder} is not used: {unfinished.note}; starting again"
    elif unfinished.rows:
        message = f"{unfinished.rows:,} texts are done in {unfinished.folder}; continuing"
    else:
        return
    typer.echo(f"outrider: {message}", err=True)


def _line(text: MarkedText) -> str:
    return json.dumps([text.text, [asdict(span) for span in text.spans]]) + "\n"


def _read_line(line: bytes) -> MarkedText:
    text, spans = json.loads(line)
    return MarkedText(text, tuple(Span(**span) for span in spans))
