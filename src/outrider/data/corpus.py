"""Reading a corpus as a stream of pairs or of running text.

Sources are text files, records with both sides (.tsv, .jsonl, .parquet), and datasets of the Hub.
"""

import codecs
import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from outrider.data.config import CorpusConfig
from outrider.data.lines import decode, open_file, read_lines
from outrider.errors import DataError, MissingExtraError

RECORD_BYTES = 1 << 26  # longest line of a .tsv or .jsonl file


class Row(NamedTuple):
    """A pair and its place; `fault` is the reason why it cannot be read."""

    place: str
    line: int
    source: str
    target: str
    fault: str = ""


class Columns(NamedTuple):
    """Columns of the two sides of a record; a language model's text has no source."""

    source: int | str | None
    target: int | str


def read_records(path: Path, corpus: CorpusConfig, *, paired: bool) -> Iterator[Row]:
    """Yield the rows of a file; its suffix determines the format."""
    kind = next((s for s in reversed(path.suffixes) if s != ".gz"), "")
    readers: dict[str, Callable[[Path, Columns], Iterator[Row]]]
    readers = {".tsv": _read_tsv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if kind not in readers:
        raise DataError(
            f"{path}: files of pairs must end in .tsv, .jsonl (each also .gz) or .parquet"
        )
    return readers[kind](path, _columns(corpus, paired, numbered=kind == ".tsv"))


def read_hub(corpus: CorpusConfig, *, paired: bool) -> Iterator[Row]:
    """Stream one split of a Hub dataset without storing it on disk."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "hub", "reading a dataset of the Hub") from error
    place = f"{corpus.hub}[{corpus.split}]"
    columns = _columns(corpus, paired, numbered=False)
    try:
        stream = datasets.load_dataset(
            corpus.hub, corpus.hub_config, split=corpus.split, streaming=True
        )
        for number, record in enumerate(stream, 1):
            yield _record_row(place, number, record, columns)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{place}: cannot be read from the Hub: {reason}") from error


def _columns(corpus: CorpusConfig, paired: bool, *, numbered: bool) -> Columns:
    if paired:
        source, target = (0, 1) if numbered else ("source", "target")
    else:
        source, target = None, 0 if numbered else "text"
    if corpus.source_column is not None:
        source = corpus.source_column
    return Columns(source, target if corpus.target_column is None else corpus.target_column)


def _read_tsv(path: Path, columns: Columns) -> Iterator[Row]:
    named = any(isinstance(column, str) for column in columns)
    with open_file(path) as stream:
        for number, line in enumerate(read_lines(stream, path, RECORD_BYTES), 1):
            text, fault = decode(line)
            cells = text.split("\t")
            if named:
                columns, named = Columns(*(_number(path, cells, c) for c in columns)), False
                continue
            if not fault and len(cells) <= max(int(c) for c in columns if c is not None):
                fault = f"only {len(cells)} columns"
            if fault:
                yield Row(str(path), number, "", text[:200], fault)
                continue
            source = "" if columns.source is None else cells[int(columns.source)]
            yield Row(str(path), number, source, cells[int(columns.target)])


def _number(path: Path, header: list[str], column: int | str | None) -> Any:
    if not isinstance(column, str):
        return column
    if column not in header:
        raise DataError(f"{path}: no column {column!r} in its first line: {', '.join(header)}")
    return header.index(column)


def _read_jsonl(path: Path, columns: Columns) -> Iterator[Row]:
    with open_file(path) as stream:
        for number, line in enumerate(read_lines(stream, path, RECORD_BYTES), 1):
            text, fault = decode(line)
            if fault:
                yield Row(str(path), number, "", text[:200], fault)
            elif text.strip():
                try:
                    record = json.loads(text)
                except (ValueError, RecursionError):
                    yield Row(str(path), number, "", text[:200], "not JSON")
                else:
                    yield _record_row(str(path), number, record, columns)


def _read_parquet(path: Path, columns: Columns) -> Iterator[Row]:
    import pyarrow.parquet

    with open_file(path):
        pass  # for our message if the file is missing
    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = sorted({str(c).split(".")[0] for c in columns if c is not None})
        present = file.schema_arrow.names
        missing = [name for name in names if name not in present]
        if missing:
            raise DataError(f"{path}: no column {missing[0]!r}; it has {', '.join(present)}")
        if not file.metadata.num_rows:
            raise DataError(f"{path}: the file is empty")
        batches = file.iter_batches(batch_size=1000, columns=names)
        records = (record for batch in batches for record in batch.to_pylist())
        for number, record in enumerate(records, 1):
            yield _record_row(str(path), number, record, columns)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged or not a Parquet file ({error})") from error


def _record_row(place: str, number: int, record: Any, columns: Columns) -> Row:
    try:
        source = "" if columns.source is None else _text(record, columns.source)
        return Row(place, number, source, _text(record, columns.target))
    except KeyError as error:
        return Row(place, number, "", str(record)[:200], error.args[0])


def _text(record: Any, column: int | str) -> str:
    """Return the text of a column, which may be nested (`a.b`); raise KeyError(fault)."""
    value = record
    for name in str(column).split("."):
        if not isinstance(value, dict) or name not in value:
            raise KeyError(f"no field {column!r}")
        value = value[name]
    if not isinstance(value, str):
        raise KeyError(f"field {column!r} is not text")
    if "\0" in value:
        raise KeyError("NUL byte")
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise KeyError("not UTF-8")
    return value


PASSAGE_BYTES = 1 << 14

Locate = Callable[[str], Path]


class Passage(NamedTuple):
    """Lines of a running text with their ends; `final` marks the end of a document."""

    place: str
    line: int
    text: str
    final: bool
    fault: str = ""


def corpus_files(corpus: CorpusConfig, locate: Locate) -> dict[str, Path]:
    """Return the path of every file of a corpus by name."""
    files = {name: locate(name) for name in corpus.source + corpus.target}
    return files | {name: path for given in corpus.pairs for name, path in _expand(given, locate)}


def _expand(name: str, locate: Locate) -> list[tuple[str, Path]]:
    """List the files of a name, which may be a pattern: `train-*.parquet`."""
    path = locate(name)
    if "*" not in path.name:
        return [(name, path)]
    files = sorted(path.parent.glob(path.name))
    if not files:
        raise DataError(f"{path}: no file matches this pattern")
    return [(str(Path(name).with_name(file.name)), file) for file in files]


def read_pairs(corpus: CorpusConfig, locate: Locate, *, max_characters: int) -> Iterator[Row]:
    """Yield the pairs of a corpus in order."""
    for row in _read_pairs(corpus, locate, max_characters):
        tagged = corpus.tag is not None and not row.fault
        yield row._replace(source=f"{corpus.tag} {row.source}") if tagged else row


def _read_pairs(corpus: CorpusConfig, locate: Locate, max_characters: int) -> Iterator[Row]:
    if corpus.hub is not None:
        yield from read_hub(corpus, paired=True)
    limit = 4 * max_characters + 2  # up to four bytes per character, and two for the line end
    if corpus.sources_alone:
        for source in corpus.source:
            yield from _read_alone(locate(source), limit)
    else:
        for source, target in zip(corpus.source, corpus.target, strict=True):
            yield from _read_aligned(locate(source), locate(target), limit)
    for name in corpus.pairs:
        for _, path in _expand(name, locate):
            yield from read_records(path, corpus, paired=True)


def read_text(corpus: CorpusConfig, locate: Locate) -> Iterator[Passage]:
    """Yield the text of a corpus with its newlines; a file or a record is a document."""
    for name in corpus.target:
        yield from _read_document(locate(name))
    if corpus.hub is not None:
        yield from _as_documents(read_hub(corpus, paired=False))
    for name in corpus.pairs:
        for _, path in _expand(name, locate):
            yield from _as_documents(read_records(path, corpus, paired=False))


def _read_aligned(source_path: Path, target_path: Path, limit: int) -> Iterator[Row]:
    with open_file(source_path) as source_file, open_file(target_path) as target_file:
        sources = read_lines(source_file, source_path, limit)
        targets = read_lines(target_file, target_path, limit)
        for number, (left, right) in enumerate(zip_longest(sources, targets), 1):
            if left is None or right is None:
                longer = number + sum(1 for _ in (targets if left is None else sources))
                counts = (number - 1, longer) if left is None else (longer, number - 1)
                raise DataError(
                    f"{source_path} has {counts[0]} lines but {target_path} has {counts[1]}; "
                    "line n of one must be the translation of line n of the other"
                )
            source, fault = decode(left)
            target, target_fault = decode(right)
            place = target_path if target_fault and not fault else source_path
            yield Row(str(place), number, source, target, fault or target_fault)


def _read_alone(path: Path, limit: int) -> Iterator[Row]:
    with open_file(path) as file:
        for number, line in enumerate(read_lines(file, path, limit), 1):
            source, fault = decode(line)
            yield Row(str(path), number, source, "", fault)


def _read_document(path: Path) -> Iterator[Passage]:
    """Yield passages of a text file; a longer line is continued in the next passage."""
    number, passage = 1, ""
    for raw, text, fault in _decode_pieces(path):
        if fault:
            yield Passage(str(path), number, text, False, fault)
        else:
            passage += text
        if len(passage) >= PASSAGE_BYTES:
            yield Passage(str(path), number, passage, False)
            passage = ""
        number += raw.endswith(b"\n")
    yield Passage(str(path), number, passage, True)


def _decode_pieces(path: Path) -> Iterator[tuple[bytes, str, str]]:
    """Yield lines, or parts of long lines, as bytes and text, with their faults."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with open_file(path) as stream:
        raw = stream.readline(PASSAGE_BYTES)
        if not raw:
            raise DataError(f"{path}: the file is empty")
        while raw:
            following = stream.readline(PASSAGE_BYTES)
            try:
                text = decoder.decode(raw, final=raw.endswith(b"\n") or not following)
                yield raw, text, "NUL byte" if "\0" in text else ""
            except UnicodeDecodeError:
                decoder.reset()
                yield raw, raw.decode("utf-8", "replace"), "not UTF-8"
            raw = following


def _as_documents(rows: Iterator[Row]) -> Iterator[Passage]:
    for row in rows:
        yield Passage(row.place, row.line, row.target, not row.fault, row.fault)
