"""Preparation of a parallel corpus: reading and cleaning, sampling, encoding."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from outrider.data.cleaning import Drops, PairCleaner
from outrider.data.config import CleanConfig, CorpusConfig, PrepareConfig
from outrider.data.corpus import Row, read_pairs
from outrider.data.manifest import Shard, Split
from outrider.data.progress import Stages
from outrider.data.shards import ShardWriter, Spool, ragged_column, spread
from outrider.errors import DataError
from outrider.text.tokenizer import Tokenizer

READ_ROWS, ENCODE_ROWS = 4096, 2048

Mask = NDArray[np.bool_]


@dataclass
class _Corpus:
    """One corpus after reading."""

    spool: Spool
    drops: Drops
    rows_read: int = 0


class PairPreparation:
    """Preparation of training and validation pairs."""

    def __init__(self, config: PrepareConfig, folder: Path, stages: Stages) -> None:
        self._config, self._folder, self._stages = config, folder, stages
        self._corpora: dict[str, _Corpus] = {}
        self._held_out = 0

    def read(self) -> None:
        """Read and clean the corpora, and determine the number of held-out pairs."""
        clean = self._config.clean
        training, valid = list(self._config.training.values()), self._config.valid
        train = self._corpora["train"] = self._read("train", training, clean)
        if valid is not None:
            self._corpora["valid"] = self._read("valid", [valid], _lenient(clean))
        rows = train.spool.rows
        self._held_out = self._config.valid_rows or int(rows * (self._config.valid_fraction or 0))
        if self._held_out >= rows:
            raise DataError(
                f"data.valid_rows: {self._held_out} pairs cannot be held out of the {rows} "
                "that remain after cleaning"
            )

    @property
    def mean_characters(self) -> int:
        """Characters of an average training pair, rounded up."""
        spool = self._corpora["train"].spool
        return -(-spool.characters // spool.rows)

    def sample(self, characters: int) -> Iterator[str]:
        """Yield evenly spread lines of training pairs with about so many characters.

        They are from both sides, or from targets only if the source has its own tokenizer.
        """
        spool = self._corpora["train"].spool
        both = self._config.source_tokenizer is None
        pairs = max(1, characters // self.mean_characters)
        first = 0
        for batch in spool.batches(ENCODE_ROWS):
            stop = first + batch.num_rows
            chosen = spread(first, stop, total=spool.rows, chosen=pairs)
            chosen &= self._shares("train", first, stop)["train"]
            for column in ("source", "target") if both else ("target",):
                yield from batch[column].filter(pa.array(chosen)).to_pylist()
            first = stop

    def encode(self, tokenizer: Tokenizer, block_rows: int) -> dict[str, Split]:
        """Write the shards of all splits."""
        splits: dict[str, Split] = {}
        for name in self._corpora:
            splits |= self._encode(name, tokenizer, block_rows)
        return splits

    def _read(self, name: str, corpora: Sequence[CorpusConfig], clean: CleanConfig) -> _Corpus:
        cleaner = PairCleaner(clean, sources_alone=corpora[0].sources_alone)
        advance = self._stages.start(f"read {name}")
        corpus = _Corpus(Spool(self._folder, name, block_rows=ENCODE_ROWS), cleaner.drops)
        rows = chain.from_iterable(
            read_pairs(config, self._config.path, max_characters=clean.max_characters)
            for config in corpora
        )
        with corpus.spool as spool:
            while chunk := list(islice(rows, READ_ROWS)):
                pairs = cleaner.keep(chunk)
                columns = {"source": [s for s, _ in pairs], "target": [t for _, t in pairs]}
                characters = sum(len(text) for column in columns.values() for text in column)
                spool.add(pa.table(columns, TEXT_COLUMNS), characters)
                corpus.rows_read += len(chunk)
                advance(len(chunk))
            spool.close()
        self._stages.finish()
        _check_not_empty(name, corpus.spool.rows, corpus)
        return corpus

    def _encode(self, name: str, tokenizer: Tokenizer, block_rows: int) -> dict[str, Split]:
        corpus = self._corpora[name]
        advance = self._stages.start(f"encode {name}", corpus.spool.rows)
        with ExitStack() as stack:
            writers = {
                split: stack.enter_context(self._writer(split, block_rows))
                for split in self._shares(name, 0, 0)
            }
            first = 0
            for batch in corpus.spool.batches(ENCODE_ROWS, remove=True):
                table = _encode(batch, tokenizer)
                short = self._short(name, first, table, corpus.drops)
                for split, share in self._shares(name, first, first + batch.num_rows).items():
                    writers[split].add(table.filter(pa.array(share & short)))
                first += batch.num_rows
                advance(batch.num_rows)
            shards = {split: writer.close() for split, writer in writers.items()}
        return {split: self._split(split, written, corpus) for split, written in shards.items()}

    def _writer(self, split: str, block_rows: int) -> ShardWriter:
        shard_rows = self._config.shard_rows
        return ShardWriter(self._folder, split, shard_rows=shard_rows, block_rows=block_rows)

    def _split(self, name: str, shards: tuple[Shard, ...], corpus: _Corpus) -> Split:
        _check_not_empty(name, len(shards), corpus)
        if name in self._corpora:
            return Split(shards=shards, rows_read=corpus.rows_read, dropped=corpus.drops.reasons)
        return Split(shards=shards, rows_read=self._held_out, dropped={})

    def _shares(self, name: str, first: int, stop: int) -> dict[str, Mask]:
        """Return for each split which of these rows of a corpus belong to it."""
        if name != "train" or not self._held_out:
            return {name: np.ones(stop - first, np.bool_)}
        total = self._corpora["train"].spool.rows
        valid = spread(first, stop, total=total, chosen=self._held_out)
        return {"train": ~valid, "valid": valid}

    def _short(self, name: str, first: int, table: pa.Table, drops: Drops) -> Mask:
        """Return the rows within `max_tokens`; count the others as dropped."""
        longest = np.maximum(table["source_length"].to_numpy(), table["target_length"].to_numpy())
        short: Mask = longest <= self._config.clean.max_tokens
        for i in np.flatnonzero(~short).tolist():
            texts = table["source"][i].as_py(), table["target"][i].as_py()
            drops.add("too many tokens", Row(f"data.{name} cleaned", first + i + 1, *texts))
        return short


TEXT_COLUMNS = pa.schema({"source": pa.string(), "target": pa.string()})


def _encode(batch: pa.RecordBatch, tokenizer: Tokenizer) -> pa.Table:
    sources = tokenizer.encode_batch(batch["source"].to_pylist())
    targets = tokenizer.encode_target_batch(batch["target"].to_pylist())
    return pa.table(
        {
            "source": batch["source"],
            "target": batch["target"],
            "source_ids": ragged_column(sources),
            "target_ids": ragged_column(targets),
            "source_length": pa.array([len(row) for row in sources], pa.int32()),
            "target_length": pa.array([len(row) for row in targets], pa.int32()),
        }
    )


def _lenient(clean: CleanConfig) -> CleanConfig:
    """Return the filters of a validation set, which drop unreadable and too long rows only."""
    return clean.model_copy(
        update={"drop_duplicates": False, "drop_equal": False, "max_ratio": None}
    )


def _check_not_empty(name: str, rows: int, corpus: _Corpus) -> None:
    if not rows:
        reasons = ", ".join(f"{d.count} {reason}" for reason, d in corpus.drops.reasons.items())
        raise DataError(
            f"data.{name}: no pair is left of {corpus.rows_read} after cleaning ({reasons}); "
            "see data.clean"
        )
