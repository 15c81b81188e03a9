"""Batches as tensors: rows of a batch plan, read from shards and padded.

The ids of one group are held as flat arrays; a batch is cut from them with a few array operations.
Rows are padded on the right, labels with -100, and every sequence ends with `</s>`;
`source_end=False` masks that of the source. Rows of a language model begin with `<s>`, which is not
a label. Rows of a masked language model have both, and their labels are the hidden tokens. Shards
hold text in reading order; `right_to_left` reverses the labels, before the final `</s>`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.data.augment import AugmentedRows
from outrider.data.config import AugmentConfig
from outrider.data.labels import Completions, Masking
from outrider.data.plan import BatchPlan, Cursor, padded_length, random_below
from outrider.data.prepared import Prepared
from outrider.data.shards import BlockReader, Ragged
from outrider.torch.nn.loss import IGNORED

WINDOW_TOKENS = 16_000_000
ROTATION = 3  # key of the random numbers that rotate the text of a language model

IntArray = NDArray[np.int64]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class PlannedBatch:
    """One rank's share of a batch, and the cursor of the batch after it."""

    tensors: Tensors
    next_cursor: Cursor


@dataclass(frozen=True)
class Deal:
    """How the parts of an update are distributed over processes.

    An update has `batches` batches with one part per planned process. Process `rank` takes every
    `world_size`-th part of this sequence, so an update has the same rows on any number of
    processes.
    """

    rank: int = 0
    world_size: int = 1
    planned: int = 1
    batches: int = 1


class BatchStream:
    """Endless training batches of one rank, starting at a cursor."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        tokens: int,
        seed: int,
        deal: Deal | None = None,
        cursor: Cursor | None = None,
        max_length: int = 1024,
        source_end: bool = True,
        right_to_left: bool = False,
        augment: AugmentConfig | None = None,
        masking: Masking | None = None,
        completions: Completions | None = None,
        window_tokens: int = WINDOW_TOKENS,
    ) -> None:
        self.cursor = cursor or Cursor()
        self._seed, self._masking = seed, masking
        self._deal = deal or Deal()
        self._collator = _Collator(prepared, max_length, source_end, right_to_left, completions)
        self._distilled = prepared.manifest.origin is not None
        self._reader = prepared.reader("train")
        split = prepared.manifest.splits["train"]
        self._augmented = (
            None
            if augment is None
            else AugmentedRows(prepared, augment, seed=seed, longest=max_length - 1)
        )
        self.plan = BatchPlan(
            self._reader.block_rows,
            self._lengths,
            seed=seed,
            tokens=tokens,
            world_size=self._deal.planned,
            max_length=max_length,
            window_rows=max(1, window_tokens * split.rows // split.tokens),
        )

    def __iter__(self) -> Iterator[PlannedBatch]:
        loaded: tuple[int, int] | None = None
        taken: list[Tensors] = []
        parts = 0
        for batch, following in self.plan.batches_from(self.cursor):
            if loaded != (batch.cursor.epoch, batch.cursor.group):
                loaded = (batch.cursor.epoch, batch.cursor.group)
                rows = self._load(batch.group.blocks, batch.cursor.epoch)
            for rank in range(self.plan.world_size):
                if parts % self._deal.world_size == self._deal.rank:
                    taken.append(self._collator(rows, batch.rows(rank)))
                parts += 1
            if parts == self._deal.batches * self.plan.world_size:
                yield from (PlannedBatch(tensors, following) for tensors in taken)
                taken, parts = [], 0

    def _lengths(self, blocks: IntArray, epoch: int) -> tuple[IntArray, IntArray]:
        if self._augmented is not None:
            return self._augmented.lengths(blocks, epoch)
        source, target = self._reader.lengths(blocks)
        return source, target + (self._masking is not None)  # a masked row has <s> and </s>

    def _load(self, blocks: IntArray, epoch: int) -> "_Rows":
        if self._augmented is not None:
            parts = [self._augmented.ids(int(block), epoch) for block in blocks]
            source, target = (_concatenate(side) for side in zip(*parts, strict=True))
            return _Rows(source, target)
        rows = _load(self._reader, blocks, self._collator.paired)
        # A distilled row is a prompt and its continuation: its boundaries must stay.
        if not self._collator.paired and not self._distilled:
            rows = _Rows(None, self._rotate(rows.target, blocks, epoch))
        if self._masking is None:
            return rows
        return _mask(rows, self._masking, blocks, self._reader.block_rows[blocks], epoch)

    def _rotate(self, text: Ragged, blocks: IntArray, epoch: int) -> Ragged:
        """Rotate the text of each block by a random offset, another one each epoch."""
        flat = text.flat.copy()
        ends = text.offsets[np.cumsum(self._reader.block_rows[blocks])]
        for block, start, end in zip(blocks, [0, *ends[:-1]], ends, strict=True):
            shift = random_below(int(end - start), self._seed, epoch, ROTATION, int(block))
            flat[start:end] = np.roll(flat[start:end], -shift)
        return Ragged(flat, text.offsets)


def valid_batches(
    prepared: Prepared,
    *,
    tokens: int,
    split: str = "valid",
    max_length: int = 1024,
    source_end: bool = True,
    right_to_left: bool = False,
    masking: Masking | None = None,
    completions: Completions | None = None,
) -> Iterator[Tensors]:
    """Yield every row of a split once, block by block, with rows of similar length together."""
    collator = _Collator(prepared, max_length, source_end, right_to_left, completions)
    reader = prepared.reader(split)
    for block in range(len(reader.block_rows)):
        # The seed changes the order of rows only, so it does not change the mean loss.
        plan = BatchPlan(
            reader.block_rows[block : block + 1],
            lambda _, __, block=block: reader.lengths(np.array([block])),  # type: ignore[misc]
            seed=0,
            tokens=tokens,
            max_length=max_length,
        )
        rows = _load(reader, np.array([block]), collator.paired)
        if masking is not None:
            rows = _mask(rows, masking, np.array([block]), reader.block_rows[[block]])
        group = plan.group(0, 0, np.array([0]))
        for index in range(len(group)):
            yield collator(rows, group.rows(index, 0))


def count_tokens(prepared: Prepared, column: str) -> IntArray:
    """Count every token in a column of the training data, without end tokens."""
    reader, count_V = prepared.reader("train"), np.zeros(prepared.tokenizer.vocab_size, np.int64)
    for block in range(len(reader.block_rows)):
        count_V += np.bincount(reader.ids(block, column).flat, minlength=len(count_V))
    return count_V


def context_length(prepared: Prepared) -> int:
    """Return the length of the longest training row, with its end or start token."""
    settings = prepared.manifest.config
    if prepared.manifest.task == "language_model":
        return int(settings["sequence_length"]) + 1
    return int(settings["clean"]["max_tokens"]) + 1


@dataclass(frozen=True)
class _Rows:
    source: Ragged | None
    target: Ragged
    """Of masked text: the input."""
    labels: Ragged | None = None
    """Of masked text: the labels."""


def _mask(
    rows: _Rows, masking: Masking, blocks: IntArray, block_rows: IntArray, epoch: int = 0
) -> _Rows:
    """Hide tokens of every block independently."""
    text, inputs, labels = rows.target, [], []
    edges = [0, *np.cumsum(block_rows).tolist()]
    for block, first, last in zip(blocks.tolist(), edges[:-1], edges[1:], strict=True):
        offsets = text.offsets[first : last + 1]
        part = Ragged(text.flat[offsets[0] : offsets[-1]], offsets - offsets[0])
        block_input, block_labels = masking(part, block, epoch)
        inputs.append(block_input)
        labels.append(block_labels)
    input_text = Ragged(np.concatenate(inputs), text.offsets)
    return _Rows(None, input_text, Ragged(np.concatenate(labels), text.offsets))


def _load(reader: BlockReader, blocks: IntArray, paired: bool) -> _Rows:
    def column(name: str) -> Ragged:
        return _concatenate([reader.ids(int(block), name) for block in blocks])

    return _Rows(column("source_ids") if paired else None, column("target_ids"))


def _concatenate(parts: Sequence[Ragged]) -> Ragged:
    lengths = np.concatenate([part.lengths for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Ragged(np.concatenate([part.flat for part in parts]), offsets)


class _Collator:
    """Pads rows of ids to tensors."""

    def __init__(
        self,
        prepared: Prepared,
        max_length: int,
        source_end: bool,
        right_to_left: bool,
        completions: Completions | None = None,
    ) -> None:
        tokenizer: Any = prepared.manifest.tokenizer
        self.paired = prepared.manifest.task == "translation"
        self._pad, self._eos, self._bos = (tokenizer[f"{n}_id"] for n in ("pad", "eos", "bos"))
        self._longest = max_length - 1  # without </s> or <s>
        self._source_end, self._right_to_left = source_end, right_to_left
        self._completions = completions

    def __call__(self, rows: _Rows, chosen: IntArray) -> Tensors:
        if rows.labels is not None:
            return self._masked_text(rows.target, rows.labels, chosen)
        if rows.source is None:
            return self._running_text(rows.target, chosen)
        source_BS, source_B = self._gather(rows.source, chosen, self._pad)
        labels_BT, target_B = self._gather(
            rows.target, chosen, IGNORED, reverse=self._right_to_left
        )
        row_B = np.arange(len(chosen))
        source_BS[row_B, source_B] = self._eos
        labels_BT[row_B, target_B] = self._eos
        keep_BS = np.arange(source_BS.shape[1]) < source_B[:, None] + self._source_end
        return {
            "input_ids": torch.from_numpy(source_BS),
            "attention_mask": torch.from_numpy(keep_BS.astype(np.int64)),
            "labels": torch.from_numpy(labels_BT),
        }

    def _running_text(self, text: Ragged, chosen: IntArray) -> Tensors:
        labels_BT, _ = self._gather(text, chosen, IGNORED)
        labels_BT = np.roll(labels_BT, 1, axis=1)
        labels_BT[:, 0] = IGNORED
        input_BT = np.where(labels_BT == IGNORED, self._pad, labels_BT)
        input_BT[:, 0] = self._bos
        if self._completions is not None:
            labels_BT = self._completions.labels(labels_BT)
        # No mask: padding is on the right, which causal attention does not read.
        return {"input_ids": torch.from_numpy(input_BT), "labels": torch.from_numpy(labels_BT)}

    def _masked_text(self, text: Ragged, labels: Ragged, chosen: IntArray) -> Tensors:
        """Add `<s>` and `</s>` to rows of masked text."""
        input_BT, length_B = self._gather(text, chosen, self._pad, ends=2)
        labels_BT, _ = self._gather(labels, chosen, IGNORED, ends=2)
        input_BT, labels_BT = np.roll(input_BT, 1, axis=1), np.roll(labels_BT, 1, axis=1)
        input_BT[:, 0] = self._bos
        input_BT[np.arange(len(chosen)), length_B + 1] = self._eos
        keep_BT = np.arange(input_BT.shape[1]) < length_B[:, None] + 2
        return {
            "input_ids": torch.from_numpy(input_BT),
            "attention_mask": torch.from_numpy(keep_BT.astype(np.int64)),
            "labels": torch.from_numpy(labels_BT),
        }

    def _gather(
        self, ids: Ragged, chosen: IntArray, fill: int, ends: int = 1, *, reverse: bool = False
    ) -> tuple[IntArray, IntArray]:
        """Return rows as an array with at least `ends` free positions behind each, and their
        lengths.

        A row that is too long is cut at its end, before it is reversed.
        """
        start_B = ids.offsets[chosen]
        length_B = np.minimum(ids.offsets[chosen + 1] - start_B, self._longest + 1 - ends)
        column_T = np.arange(padded_length(length_B + ends, self._longest + 1).max())
        inside_BT = column_T < length_B[:, None]
        out_BT = np.full(inside_BT.shape, fill, np.int64)
        place_BT = length_B[:, None] - 1 - column_T if reverse else column_T[None]
        out_BT[inside_BT] = ids.flat[(start_B[:, None] + place_BT)[inside_BT]]
        return out_BT, length_B
