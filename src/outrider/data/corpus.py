"""Reading a corpus as a stream of pairs or of running text."""

import codecs
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from outrider.data.config import CorpusConfig
from outrider.data.lines import decode, open_file, read_lines
from outrider.data.records import Row, read_hub, read_records
from outrider.errors import DataError

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
