"""Language models with memory: consecutive segments, with a memory carried between them.

    loss = sum_t -log p(x_t | x_<t of this segment, memory of the segments before)

Each row of a batch continues the same row of the batch before.

A text of N tokens is cut into as many equal lanes as a batch has rows, and a batch takes the next
`segment` tokens of every lane. So every token is predicted once an epoch, and a model may carry a
memory of each row from batch to batch. Each epoch rotates the text first, so that lanes and
segments are cut elsewhere.

    lane 0    <s> a b | c d e | f g h |  ...
    lane 1    <s> p q | r s <s> | t u v |  ...        a document ended with s

A lane begins with `<s>`, and `<s>` replaces the `</s>` at the end of a document, which marks a new
document for the model. Ranks take lanes in turn.

The memory depends on the weights of earlier updates and cannot be recomputed, so checkpoints save
it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from outrider.data.labels import Completions
from outrider.data.plan import Cursor, random_below
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError, DataError, ModelError
from outrider.run_config import RunConfig
from outrider.torch.models import LanguageModel
from outrider.torch.nn.loss import IGNORED
from outrider.torch.nn.stack.memory import Memory
from outrider.torch.training.batches import ROTATION, Deal, PlannedBatch, Tensors
from outrider.torch.training.kinds.language_model import LanguageModelKind, LanguageModelObjective
from outrider.torch.training.objective import Inputs, Objective, unwrapped
from outrider.torch.training.start import started_config

IntArray = NDArray[np.int64]
_FILE = "memory-{}.safetensors"


def has_memory(config: RunConfig) -> bool:
    """Whether a run trains a language model with memory."""
    if config.model.start is None:
        return bool(config.model.values.get("memory"))
    return bool(getattr(started_config(config), "memory", 0))


class SegmentMemoryKind(LanguageModelKind):
    def segment(self, model: LanguageModel) -> int:
        return model.config.max_positions

    def stream(
        self,
        model: LanguageModel,
        prepared: Prepared,
        deal: Deal,
        cursor: Cursor | None = None,
    ) -> Iterable[PlannedBatch]:
        planned, seed = deal.planned, self.config.seed
        if planned != deal.world_size:
            message = f"a model with memory must resume on the {planned} it was started on"
            raise ConfigError("processes", f"got {deal.world_size}; {message}")
        return self._segments(model, prepared, deal, seed=seed, cursor=cursor)

    def valid_batches(
        self,
        model: LanguageModel,
        prepared: Prepared,
        deal: Deal,
        count: int | None = None,
    ) -> Iterator[Tensors]:
        """Rows continue from batch to batch, so processes share rows instead of batches."""
        stream = self._segments(model, prepared, deal, seed=None, split="valid")
        return islice(stream.batches_of(0), count)

    def _segments(
        self, model: LanguageModel, prepared: Prepared, deal: Deal, **options: Any
    ) -> "SegmentStream":
        return SegmentStream(
            prepared,
            tokens=self.batch_tokens(deal.world_size),
            segment=self.segment(model),
            rank=deal.rank,
            world_size=deal.world_size,
            completions=self.completions(prepared),
            **options,
        )

    def objective(self) -> Objective:
        return SegmentObjective()


class SegmentObjective(LanguageModelObjective):
    """Row i of a batch continues row i of the batch before."""

    def __init__(self) -> None:
        self.memory: Memory | None = None

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        memory = self._recall(model, inputs["input_ids"])
        output = self.run(model, inputs, divisor, smoothing, memory=memory)
        self.memory = output.memory
        loss: Tensor = output.loss
        return loss

    def save(self, folder: Path, *, process: int) -> None:
        if self.memory is not None:
            tensors = {name: x.contiguous() for name, x in self.memory._asdict().items()}
            save_file(tensors, folder / _FILE.format(process))

    def load(self, folder: Path, *, process: int) -> None:
        path = folder / _FILE.format(process)
        try:
            self.memory = Memory(**load_file(path))
        except (OSError, SafetensorError, TypeError) as error:
            raise ModelError(
                f"{path}: the memory of the run cannot be read ({error}); delete the folder to "
                "resume from the checkpoint before it"
            ) from error

    def _recall(self, model: nn.Module, input_BT: Tensor) -> Memory:
        if self.memory is None:
            memory: Memory = unwrapped(model).new_memory(input_BT.shape[0])
            return memory
        states, known = self.memory
        return Memory(states.to(input_BT.device), known.to(input_BT.device))


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
