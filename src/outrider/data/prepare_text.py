"""Preparation of a language model's text: reading, sampling, and cutting tokens into rows."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from outrider.data.cleaning import Drops
from outrider.data.config import CorpusConfig, PrepareConfig
from outrider.data.corpus import read_text
from outrider.data.manifest import Shard, Split
from outrider.data.progress import Stages
from outrider.data.shards import ShardWriter, Spool, ragged_column, spread
from outrider.errors import DataError
from outrider.text.normalise import normalise_verbatim
from outrider.text.tokenizer import Tokenizer

SPOOL_ROWS, ENCODE_PASSAGES = 64, 64
LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass
class _Corpus:
    """One text after reading: its passages and number of lines."""

    spool: Spool
    drops: Drops
    lines: int = 0


class _Piece(NamedTuple):
    """A passage, its split, and whether it ends a document."""

    split: str
    text: str
    final: bool


class TextPreparation:
    """Preparation of training and validation text."""

    def __init__(self, config: PrepareConfig, folder: Path, stages: Stages) -> None:
        self._config, self._folder, self._stages = config, folder, stages
        self._corpora: dict[str, _Corpus] = {}

    def read(self) -> None:
        """Read the corpora."""
        self._corpora["train"] = self._read("train", list(self._config.training.values()))
        if self._config.valid is not None:
            self._corpora["valid"] = self._read("valid", [self._config.valid])

    @property
    def mean_characters(self) -> int:
        """Characters of a row if a token has one; more make blocks larger."""
        return self._config.sequence_length

    def sample(self, characters: int) -> Iterator[str]:
        """Yield evenly spread lines of the training text with about so many characters."""
        corpus = self._corpora["train"]
        mean = -(-corpus.spool.characters // corpus.lines)
        chosen, first = max(1, characters // mean), 0
        for piece in self._pieces("train"):
            lines = LINE.findall(piece.text) if piece.split == "train" else []
            marks = spread(first, first + len(lines), total=corpus.lines, chosen=chosen)
            yield from (line for line, mark in zip(lines, marks, strict=True) if mark)
            first += len(lines)

    def encode(self, tokenizer: Tokenizer, block_rows: int) -> dict[str, Split]:
        """Write the shards of all splits."""
        splits: dict[str, Split] = {}
        for name, corpus in self._corpora.items():
            advance = self._stages.start(f"encode {name}", corpus.spool.rows)
            pieces = self._pieces(name, remove=True)
            for split, run in groupby(pieces, key=lambda piece: piece.split):
                with self._writer(split, block_rows) as writer:
                    # One position of a row is reserved for <s>.
                    cutter = _RowCutter(writer, tokenizer, self._config.sequence_length - 1)
                    while chunk := list(islice(run, ENCODE_PASSAGES)):
                        cutter.add(chunk)
                        advance(len(chunk))
                    splits[split] = self._split(split, cutter)
        return splits

    def _read(self, name: str, corpora: Sequence[CorpusConfig]) -> _Corpus:
        advance = self._stages.start(f"read {name}")
        corpus = _Corpus(Spool(self._folder, name, block_rows=SPOOL_ROWS), Drops())
        with corpus.spool as spool:
            texts = (read_text(config, self._config.path) for config in corpora)
            for passage in chain.from_iterable(texts):
                if passage.fault:
                    corpus.drops.fault(passage, self._config.clean)
                    continue
                text = normalise_verbatim(passage.text)
                spool.add(pa.table({"text": [text], "final": [passage.final]}), len(text))
                corpus.lines += len(LINE.findall(text))
                advance(1)
            spool.close()
        self._stages.finish()
        if not corpus.spool.characters:
            raise DataError(f"data.{name}: no text is left after cleaning; see data.clean")
        return corpus

    def _pieces(self, name: str, *, remove: bool = False) -> Iterator[_Piece]:
        """Yield the passages of a corpus; the end of the training text may be held out."""
        spool, position = self._corpora[name].spool, 0
        fraction = self._config.valid_fraction if name == "train" else None
        cut = spool.characters - int(spool.characters * (fraction or 0))
        for batch in spool.batches(SPOOL_ROWS, remove=remove):
            for text, final in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                before_cut = cut - position
                position += len(text)
                if before_cut >= len(text):
                    yield _Piece(name, text, final)
                    continue
                if before_cut > 0:
                    yield _Piece(name, text[:before_cut], True)
                yield _Piece("valid", text[max(before_cut, 0) :], final)

    def _writer(self, split: str, block_rows: int) -> ShardWriter:
        shard_rows = self._config.shard_rows
        return ShardWriter(self._folder, split, shard_rows=shard_rows, block_rows=block_rows)

    def _split(self, name: str, cutter: "_RowCutter") -> Split:
        shards = cutter.close()
        drops = self._corpora[name].drops.reasons if name in self._corpora else {}
        read = sum(d.count for d in drops.values()) + cutter.passages
        return Split(shards=shards, rows_read=read, dropped=drops)


class _RowCutter:
    """Joins the tokens of passages and cuts them into rows of equal length, except the last."""

    def __init__(self, writer: ShardWriter, tokenizer: Tokenizer, length: int) -> None:
        self.passages = 0
        self._writer, self._tokenizer, self._length = writer, tokenizer, length
        self._rest = np.zeros(0, np.int32)

    def add(self, pieces: list[_Piece]) -> None:
        """Encode passages; a document ends with `</s>`."""
        self.passages += len(pieces)
        parts = [self._rest]
        rows = self._tokenizer.encode_target_batch([piece.text for piece in pieces])
        for row, piece in zip(rows, pieces, strict=True):
            parts.append(np.array(row + [self._tokenizer.eos_id] * piece.final, np.int32))
        tokens = np.concatenate(parts)
        whole = len(tokens) // self._length * self._length
        self._write(tokens[:whole].reshape(-1, self._length))
        self._rest = tokens[whole:]

    def close(self) -> tuple[Shard, ...]:
        """Write the last tokens."""
        if len(self._rest):
            self._write(self._rest[None])
        return self._writer.close()

    def _write(self, rows: NDArray[np.int32]) -> None:
        if not len(rows):
            return
        self._writer.add(
            pa.table(
                {
                    "target": self._tokenizer.decode_batch(rows.tolist()),
                    "target_ids": ragged_column(list(rows)),
                    "target_length": pa.array([rows.shape[1]] * len(rows), pa.int32()),
                }
            )
        )
