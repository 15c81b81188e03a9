"""Batches as tensors: the plan says which rows, the shards hold them, padding makes them square.

The ids of one group are held as flat arrays; a batch is cut from them with a few array operations.
Rows are padded on the right, labels with -100, and every sequence ends with `</s>`, which a model
that reads sources without it is not shown. A language model's rows begin with `<s>` instead, which
is not counted as a label; those of a masked one stand between both, and labels are what it has to
guess (`masking.py`). One that learns completions alone has no other labels (`completions.py`).
Shards hold texts as they are read; of a model that writes from right to left the labels are turned
round here, and `</s>` is the last of them still.
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

__all__ = ["BatchStream", "Deal", "PlannedBatch", "valid_batches"]

WINDOW_TOKENS = 16_000_000
ROTATION = 3  # key of the random numbers that rotate a language model's text

IntArray = NDArray[np.int64]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class PlannedBatch:
    """One rank's share of a batch, and where the stream goes on after it."""

    tensors: Tensors
    next_cursor: Cursor


@dataclass(frozen=True)
class Deal:
    """How parts that were planned for some processes are dealt to another number of them.

    An update has `batches` batches of as many parts as processes were planned; all of these in a
    row, every process takes every `world_size`-th. So an update has the same rows on any number.
    """

    batches: int
    rank: int
    world_size: int


class BatchStream:
    """Endless training batches of one rank, from a cursor on."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        tokens: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        cursor: Cursor | None = None,
        max_length: int = 1024,
        source_end: bool = True,
        right_to_left: bool = False,
        augment: AugmentConfig | None = None,
        masking: Masking | None = None,
        completions: Completions | None = None,
        window_tokens: int = WINDOW_TOKENS,
        deal: Deal | None = None,
    ) -> None:
        """Plan for `world_size` processes and take the parts of `rank`, or those it is dealt."""
        self.cursor = cursor or Cursor()
        self._seed, self._masking = seed, masking
        self._deal = deal or Deal(1, rank, world_size)
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
            world_size=world_size,
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
        return source, target + (self._masking is not None)  # both ends of a row are shown

    def _load(self, blocks: IntArray, epoch: int) -> "_Rows":
        if self._augmented is not None:
            parts = [self._augmented.ids(int(block), epoch) for block in blocks]
            source, target = (_concatenate(side) for side in zip(*parts, strict=True))
            return _Rows(source, target)
        rows = _load(self._reader, blocks, self._collator.paired)
        # Half of a distilled row answers the other half: it must be cut where the model was asked.
        if not self._collator.paired and not self._distilled:
            rows = _Rows(None, self._rotate(rows.target, blocks, epoch))
        if self._masking is None:
            return rows
        return _mask(rows, self._masking, blocks, self._reader.block_rows[blocks], epoch)

    def _rotate(self, text: Ragged, blocks: IntArray, epoch: int) -> Ragged:
        """Turn the text of each block like a wheel, so that every epoch cuts its rows elsewhere."""
        flat = text.flat.copy()
        ends = text.offsets[np.cumsum(self._reader.block_rows[blocks])]
        for block, start, end in zip(blocks, [0, *ends[:-1]], ends, strict=True):
            by = random_below(int(end - start), self._seed, epoch, ROTATION, int(block))
            flat[start:end] = np.roll(flat[start:end], -by)
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
    """Every row of a split once, block by block, alike lengths together."""
    collator = _Collator(prepared, max_length, source_end, right_to_left, completions)
    reader = prepared.reader(split)
    for block in range(len(reader.block_rows)):
        # A plan over a single block: its seed moves rows about, but never changes a mean loss.
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


@dataclass(frozen=True)
class _Rows:
    source: Ragged | None
    target: Ragged
    """Of a masked text: what is shown."""
    asked: Ragged | None = None
    """Of a masked text: what is to be guessed."""


def _mask(
    rows: _Rows, masking: Masking, blocks: IntArray, block_rows: IntArray, epoch: int = 0
) -> _Rows:
    """Hide tokens, in every block as if it were alone."""
    text, shown, asked = rows.target, [], []
    edges = [0, *np.cumsum(block_rows).tolist()]
    for block, first, last in zip(blocks.tolist(), edges[:-1], edges[1:], strict=True):
        offsets = text.offsets[first : last + 1]
        part = Ragged(text.flat[offsets[0] : offsets[-1]], offsets - offsets[0])
        hidden, wanted = masking(part, block, epoch)
        shown.append(hidden)
        asked.append(wanted)
    shown_text = Ragged(np.concatenate(shown), text.offsets)
    return _Rows(None, shown_text, Ragged(np.concatenate(asked), text.offsets))


def _load(reader: BlockReader, blocks: IntArray, paired: bool) -> _Rows:
    def column(name: str) -> Ragged:
        return _concatenate([reader.ids(int(block), name) for block in blocks])

    return _Rows(column("source_ids") if paired else None, column("target_ids"))


def _concatenate(parts: Sequence[Ragged]) -> Ragged:
    lengths = np.concatenate([part.lengths for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Ragged(np.concatenate([part.flat for part in parts]), offsets)


class _Collator:
    """Turns rows of ids into padded tensors."""

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
        self._room = max_length - 1  # one place is for </s> or <s>
        self._source_end, self._right_to_left = source_end, right_to_left
        self._completions = completions

    def __call__(self, rows: _Rows, chosen: IntArray) -> Tensors:
        if rows.asked is not None:
            return self._masked_text(rows.target, rows.asked, chosen)
        if rows.source is None:
            return self._running_text(rows.target, chosen)
        source_BS, source_B = self._gather(rows.source, chosen, self._pad)
        labels_BT, target_B = self._gather(rows.target, chosen, IGNORED, turned=self._right_to_left)
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
        # No mask: padding stands on the right, where causal attention never looks.
        return {"input_ids": torch.from_numpy(input_BT), "labels": torch.from_numpy(labels_BT)}

    def _masked_text(self, shown: Ragged, asked: Ragged, chosen: IntArray) -> Tensors:
        """Rows between `<s>` and `</s>`."""
        input_BT, length_B = self._gather(shown, chosen, self._pad, ends=2)
        labels_BT, _ = self._gather(asked, chosen, IGNORED, ends=2)
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
        self, ids: Ragged, chosen: IntArray, fill: int, ends: int = 1, *, turned: bool = False
    ) -> tuple[IntArray, IntArray]:
        """Rows as an array with at least `ends` free places behind each, and their lengths.

        A row that is too long is cut at its end, `turned` round or not.
        """
        start_B = ids.offsets[chosen]
        length_B = np.minimum(ids.offsets[chosen + 1] - start_B, self._room + 1 - ends)
        column_T = np.arange(padded_length(length_B + ends, self._room + 1).max())
        inside_BT = column_T < length_B[:, None]
        out_BT = np.full(inside_BT.shape, fill, np.int64)
        place_BT = length_B[:, None] - 1 - column_T if turned else column_T[None]
        out_BT[inside_BT] = ids.flat[(start_B[:, None] + place_BT)[inside_BT]]
        return out_BT, length_B
