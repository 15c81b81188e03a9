"""Consecutive segments: each row of a batch goes on where the same row of the batch before ended.

A text of N tokens is cut into as many equal lanes as a batch has rows, and a batch takes the next
`segment` tokens of every lane. So every token is predicted once an epoch, and a model may carry
what it remembers of a row from batch to batch. Each epoch turns the text like a wheel first, so
that its lanes and segments are cut elsewhere.

    lane 0    <s> a b | c d e | f g h |  ...
    lane 1    <s> p q | r s <s> | t u v |  ...        a document ended with s

A lane begins with `<s>`, and `<s>` stands in the place of the `</s>` that ended a document: this
is how a model knows that a row begins anew. Lanes are dealt to the ranks in turn.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.data.labels import Completions
from outrider.data.plan import Cursor, random_below
from outrider.data.prepared import Prepared
from outrider.errors import DataError
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.batches import ROTATION, PlannedBatch, Tensors

__all__ = ["SegmentStream"]

IntArray = NDArray[np.int64]


class SegmentStream:
    """Endless segments of one rank, from a cursor on; `batches_of` gives a single epoch."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        tokens: int,
        segment: int,
        seed: int | None,
        rank: int = 0,
        world_size: int = 1,
        cursor: Cursor | None = None,
        split: str = "train",
        completions: Completions | None = None,
    ) -> None:
        """Open a split; without a seed no epoch turns the text."""
        tokenizer = prepared.manifest.tokenizer
        self._pad, self._eos, self._bos = (int(tokenizer[f"{n}_id"]) for n in ("pad", "eos", "bos"))
        self.cursor = cursor or Cursor()
        self._segment, self._seed, self._completions = segment, seed, completions
        rows = max(1, min(tokens, prepared.manifest.splits[split].tokens) // segment)
        self._text = _Text(prepared, split, held=rows + 1)
        lanes = max(1, min(rows * world_size, self._text.tokens // segment))
        if lanes < world_size:
            raise DataError(
                f"{self._text.tokens} tokens of {split} are too few segments of {segment} for "
                f"{world_size} processes; start fewer processes or prepare more data"
            )
        self._lane_tokens = -(-self._text.tokens // lanes)
        self._lanes = range(rank, lanes, world_size)
        self.steps = -(-self._lane_tokens // segment)
        """Batches of an epoch."""

    def __iter__(self) -> Iterator[PlannedBatch]:
        epoch, step = self.cursor.epoch, self.cursor.batch
        if self.cursor.group or step >= self.steps:
            raise DataError(
                f"{self.cursor} lies outside this text; the data, the token budget, the segment "
                "or the number of processes changed since it was saved"
            )
        while True:
            for index in range(step, self.steps):
                last = index + 1 == self.steps
                after = Cursor(epoch + 1) if last else Cursor(epoch, 0, index + 1)
                yield PlannedBatch(self._batch(epoch, index), after)
            epoch, step = epoch + 1, 0

    def batches_of(self, epoch: int) -> Iterator[Tensors]:
        """Every token of one epoch once."""
        return (self._batch(epoch, step) for step in range(self.steps))

    def _batch(self, epoch: int, step: int) -> Tensors:
        """Inputs [B, T], and labels [B, T + 1], which stand where their tokens stand."""
        seed, total = self._seed, self._text.tokens
        turn = 0 if seed is None else random_below(total, seed, epoch, ROTATION)
        input_BT = np.full((len(self._lanes), self._segment), self._pad, np.int64)
        labels_BT = np.full((len(self._lanes), self._segment + 1), IGNORED, np.int64)
        for row, lane in enumerate(self._lanes):
            first = lane * self._lane_tokens
            start = first + step * self._segment
            stop = min(start + self._segment, first + self._lane_tokens, total)
            if start >= stop:
                continue
            ids = self._text.read(turn + start - 1, stop - start + 1)
            before = np.where(ids[:-1] == self._eos, self._bos, ids[:-1])
            before[0] = self._bos if step == 0 else before[0]
            input_BT[row, : stop - start] = before
            learnt = self._learnt(turn + first, turn + start, turn + stop)
            labels_BT[row, 1 : stop - start + 1] = learnt
        return {"input_ids": torch.from_numpy(input_BT), "labels": torch.from_numpy(labels_BT)}

    def _learnt(self, first: int, start: int, stop: int) -> IntArray:
        """Labels of a segment; its lane, read back far enough, says if it begins within one."""
        if self._completions is None:
            return self._text.read(start, stop - start)
        back = self._segment
        while True:
            begin = max(first, start - back)
            ids = self._text.read(begin, stop - begin)
            if begin == first or self._completions.decided(ids[: start - begin]):
                return self._completions.labels(ids)[start - begin :]
            back *= 2


class _Text:
    """The tokens of a split as one wheel; holds the blocks read last."""

    def __init__(self, prepared: Prepared, split: str, *, held: int) -> None:
        self._reader = prepared.reader(split)
        self._folder, self._held = prepared.folder, held
        self._blocks: OrderedDict[int, NDArray[np.integer[Any]]] = OrderedDict()
        # Every lane reads in a block of its own: what is held is as narrow as the vocabulary.
        self._words = int(prepared.manifest.tokenizer["vocab_size"])
        self._type = np.min_scalar_type(max(self._words - 1, 0))
        self.tokens = int(prepared.manifest.splits[split].tokens)
        # All rows are of one length, but for the very last.
        length = int(self._reader.ids(0, "target_ids").lengths[0])
        self._starts = np.concatenate([[0], np.cumsum(self._reader.block_rows)]) * length
        if not 0 <= self._starts[-1] - self.tokens < length:
            raise DataError(
                f"{prepared.folder}: is no running text, its rows differ in length; a model with "
                "memory learns from text as `outrider prepare` cuts it"
            )

    def read(self, start: int, count: int) -> IntArray:
        """Read `count` tokens from `start` on, round and round, into an array of its own."""
        parts = []
        while count:
            start %= self.tokens
            block = int(np.searchsorted(self._starts, start, side="right")) - 1
            ids = self._block(block)[start - self._starts[block] :][:count]
            parts.append(ids)
            start, count = start + len(ids), count - len(ids)
        return np.concatenate(parts, dtype=np.int64)

    def _block(self, block: int) -> NDArray[np.integer[Any]]:
        if block not in self._blocks:
            flat = self._reader.ids(block, "target_ids").flat
            if flat.min(initial=0) < 0 or flat.max(initial=0) >= self._words:
                raise DataError(
                    f"{self._folder}: block {block} holds a token outside its vocabulary of "
                    f"{self._words}; run outrider prepare --force"
                )
            self._blocks[block] = flat.astype(self._type)
            if len(self._blocks) > self._held:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(block)
        return self._blocks[block]
