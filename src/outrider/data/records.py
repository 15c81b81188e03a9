"""Records with both sides: .tsv, .jsonl and .parquet files, and datasets of the Hub."""

import json
from collections.abc import Callable, Iterator
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
