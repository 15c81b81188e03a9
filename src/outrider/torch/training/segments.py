"""Consecutive segments: each row of a batch continues the same row of the batch before.

A text of N tokens is cut into as many equal lanes as a batch has rows, and a batch takes the next
`segment` tokens of every lane. So every token is predicted once an epoch, and a model may carry a
memory of each row from batch to batch. Each epoch rotates the text first, so that lanes and
segments are cut elsewhere.

    lane 0    <s> a b | c d e | f g h |  ...
    lane 1    <s> p q | r s <s> | t u v |  ...        a document ended with s

A lane begins with `<s>`, and `<s>` replaces the `</s>` at the end of a document, which marks a new
document for the model. Ranks take lanes in turn.
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

IntArray = NDArray[np.int64]


class SegmentStream:
    """Endless segments of one rank, starting at a cursor; `batches_of` yields a single epoch."""

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
        """Open a split; without a seed the text is not rotated."""
        tokenizer = prepared.manifest.tokenizer
        self._pad, self._eos, self._bos = (int(tokenizer[f"{n}_id"]) for n in ("pad", "eos", "bos"))
        self.cursor = cursor or Cursor()
        self._segment, self._seed, self._completions = segment, seed, completions
        rows = max(1, min(tokens, prepared.manifest.splits[split].tokens) // segment)
        self._text = _Text(prepared, split, cached=rows + 1)
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
                f"{self.cursor} is outside this text; the data, the token budget, the segment "
                "or the number of processes changed since it was saved"
            )
        while True:
            for index in range(step, self.steps):
                last = index + 1 == self.steps
                after = Cursor(epoch + 1) if last else Cursor(epoch, 0, index + 1)
                yield PlannedBatch(self._batch(epoch, index), after)
            epoch, step = epoch + 1, 0

    def batches_of(self, epoch: int) -> Iterator[Tensors]:
        """Yield every token of one epoch once."""
        return (self._batch(epoch, step) for step in range(self.steps))

    def _batch(self, epoch: int, step: int) -> Tensors:
        """Return inputs [B, T] and labels [B, T + 1], which are aligned with the inputs."""
        seed, total = self._seed, self._text.tokens
        shift = 0 if seed is None else random_below(total, seed, epoch, ROTATION)
        input_BT = np.full((len(self._lanes), self._segment), self._pad, np.int64)
        labels_BT = np.full((len(self._lanes), self._segment + 1), IGNORED, np.int64)
        for row, lane in enumerate(self._lanes):
            first = lane * self._lane_tokens
            start = first + step * self._segment
            stop = min(start + self._segment, first + self._lane_tokens, total)
            if start >= stop:
                continue
            ids = self._text.read(shift + start - 1, stop - start + 1)
            before = np.where(ids[:-1] == self._eos, self._bos, ids[:-1])
            before[0] = self._bos if step == 0 else before[0]
            input_BT[row, : stop - start] = before
            labels = self._labels(shift + first, shift + start, shift + stop)
            labels_BT[row, 1 : stop - start + 1] = labels
        return {"input_ids": torch.from_numpy(input_BT), "labels": torch.from_numpy(labels_BT)}

    def _labels(self, first: int, start: int, stop: int) -> IntArray:
        """Return the labels of a segment; completions may need tokens of the lane before it."""
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
    """The tokens of a split as a ring; caches the blocks read last."""

    def __init__(self, prepared: Prepared, split: str, *, cached: int) -> None:
        self._reader = prepared.reader(split)
        self._folder, self._cached = prepared.folder, cached
        self._blocks: OrderedDict[int, NDArray[np.integer[Any]]] = OrderedDict()
        # Every lane reads its own block, so cached ids have the smallest type that fits.
        self._vocab_size = int(prepared.manifest.tokenizer["vocab_size"])
        self._type = np.min_scalar_type(max(self._vocab_size - 1, 0))
        self.tokens = int(prepared.manifest.splits[split].tokens)
        # All rows but the last have the same length.
        length = int(self._reader.ids(0, "target_ids").lengths[0])
        self._starts = np.concatenate([[0], np.cumsum(self._reader.block_rows)]) * length
        if not 0 <= self._starts[-1] - self.tokens < length:
            raise DataError(
                f"{prepared.folder}: rows differ in length; a model with memory needs running text "
                "as `outrider prepare` cuts it"
            )

    def read(self, start: int, count: int) -> IntArray:
        """Copy `count` tokens from `start` on, wrapping around."""
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
            if flat.min(initial=0) < 0 or flat.max(initial=0) >= self._vocab_size:
                raise DataError(
                    f"{self._folder}: block {block} holds a token outside its vocabulary of "
                    f"{self._vocab_size}; run outrider prepare --force"
                )
            self._blocks[block] = flat.astype(self._type)
            if len(self._blocks) > self._cached:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(block)
        return self._blocks[block]
