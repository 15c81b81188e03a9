"""Sentences of text files: counted, and some of them taken, spread evenly."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from outrider.data.lines import decode, open_file, read_lines
from outrider.files import replacing
from outrider.text.sentences import split

__all__ = ["count_sentences", "read_sentences", "sample", "write_sample"]

LONGEST_LINE = 1 << 16
"""Bytes; a longer line is no text."""
SHORTEST, LONGEST = 2, 400
"""Letters of a sentence that is worth translating."""


def read_sentences(files: Iterable[Path]) -> Iterator[str]:
    """Yield the sentences of files, plain or .gz; what cannot be read is left out."""
    for path in files:
        with open_file(path) as file:
            for raw in read_lines(file, path, LONGEST_LINE):
                line, fault = decode(raw)
                if fault:
                    continue
                for sentence in map(str.strip, split(line)):
                    if SHORTEST <= len(sentence) <= LONGEST:
                        yield sentence


def count_sentences(path: Path) -> int:
    """Count the sentences of a file."""
    return sum(1 for _ in read_sentences([path]))


def sample(sentences: Iterable[str], wanted: int, *, of: int) -> list[str]:
    """Take `wanted` of `of` sentences, spread evenly."""
    return list(_spread(sentences, wanted, of))


def write_sample(sentences: Iterable[str], path: Path, wanted: int, *, of: int) -> None:
    """Write so many of the sentences to a file, one a line."""
    with replacing(path) as out:
        for sentence in _spread(sentences, wanted, of):
            out.write(" ".join(sentence.split()) + "\n")


def _spread(sentences: Iterable[str], wanted: int, of: int) -> Iterator[str]:
    for number, sentence in enumerate(sentences):
        if (number + 1) * wanted // of > number * wanted // of:
            yield sentence
