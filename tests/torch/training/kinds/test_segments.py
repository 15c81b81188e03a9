"""Segments continue those of the previous batch and contain every token."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.data.config import PrepareConfig
from outrider.data.labels import Completions
from outrider.data.plan import Cursor
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared
from outrider.errors import DataError
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.kinds.segment_memory import SegmentStream

SEGMENT = 7


@pytest.fixture
def text(tmp_path: Path) -> Prepared:
    """Three documents, one of them short."""
    for name, size in (("a", 150), ("b", 20), ("c", 91)):
        letters = "".join(chr(97 + (ord(name) * n + n * n) % 26) for n in range(size))
        (tmp_path / f"{name}.txt").write_text(letters)
    config = PrepareConfig.model_validate(
        {
            "folder": str(tmp_path / "prepared"),
            "root": str(tmp_path),
            "train": {"target": ["a.txt", "b.txt", "c.txt"]},
            "sequence_length": 12,
            "tokenizer": {"kind": "char"},
            "shard_rows": 10,
        }
    )
    return prepare(config, task="language_model", progress=False)


def whole(text: Prepared) -> np.ndarray:
    reader = text.reader("train")
    blocks = range(len(reader.block_rows))
    return np.concatenate([reader.ids(block, "target_ids").flat for block in blocks])


def stream(text: Prepared, **changes: object) -> SegmentStream:
    options = {"tokens": 30, "segment": SEGMENT, "seed": 5}
    return SegmentStream(text, **{**options, **changes})


def lanes(text: Prepared, epoch: int = 0, **changes: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of all batches, concatenated along the time axis."""
    batches = list(stream(text, **changes).batches_of(epoch))
    inputs = torch.cat([batch["input_ids"] for batch in batches], dim=1)
    return inputs, torch.cat([batch["labels"][:, 1:] for batch in batches], dim=1)


def test_every_token_is_predicted_once_an_epoch(text: Prepared) -> None:
    tokens = whole(text)
    for epoch in range(3):
        _, labels = lanes(text, epoch)
        found = labels[labels != IGNORED].numpy()
        turned = [np.roll(tokens, -by) for by in range(len(tokens))]
        assert any(np.array_equal(found, one) for one in turned)
    assert not torch.equal(lanes(text, 0)[1], lanes(text, 1)[1])
    assert np.array_equal(lanes(text, 4, seed=None)[1][lanes(text, seed=None)[1] >= 0], tokens)


def test_inputs_are_the_previous_labels_and_documents_start_with_bos(text: Prepared) -> None:
    bos, eos = text.tokenizer.bos_id, text.tokenizer.eos_id
    inputs, labels = lanes(text)
    assert (inputs[:, 0] == bos).all()
    real = labels[:, 1:] != IGNORED
    before = torch.where(labels[:, :-1] == eos, bos, labels[:, :-1])
    assert torch.equal(inputs[:, 1:][real], before[real])
    assert (inputs == bos).sum() == len(inputs) + (labels[:, :-1][real] == eos).sum()
    assert not (inputs == eos).any()


@pytest.mark.parametrize("segment", [1, 2, SEGMENT])
@pytest.mark.parametrize("marks", [(3, 4, 9, 10), (5, 6, 40, 43), (30, 33, 31, 32), (8, 9, 0, 0)])
def test_completions_span_segments(
    text: Prepared, segment: int, marks: tuple[int, int, int, int]
) -> None:
    """Labels equal those of the uncut lane, for any cut and any distance of a mark."""
    tokens = whole(text).tolist()
    completions = Completions(tuple(tokens[slice(*marks[:2])]), tuple(tokens[slice(*marks[2:])]))
    for epoch in range(4):
        _, all_labels = lanes(text, epoch, segment=segment, tokens=4 * segment)
        _, labels = lanes(text, epoch, segment=segment, tokens=4 * segment, completions=completions)
        assert np.array_equal(labels.numpy(), completions.labels(all_labels.numpy()))
        assert (labels != IGNORED).any()
    assert (labels == IGNORED).any()


def test_ranks_divide_the_lanes(text: Prepared) -> None:
    both = [lanes(text, tokens=15, rank=rank, world_size=2) for rank in range(2)]
    alone = lanes(text, tokens=30)
    for part in range(2):
        assert torch.equal(torch.stack([r[part] for r in both], 1).flatten(0, 1), alone[part])


def test_resuming_gives_the_same_tensors(text: Prepared) -> None:
    batches = iter(stream(text))
    seen = [next(batches) for _ in range(stream(text).steps + 4)]
    for at in (0, 3, stream(text).steps - 1, stream(text).steps + 1):
        again = next(iter(stream(text, cursor=seen[at].next_cursor)))
        for name, tensor in again.tensors.items():
            assert torch.equal(tensor, seen[at + 1].tensors[name])


def test_a_cursor_of_another_plan_is_refused(text: Prepared) -> None:
    with pytest.raises(DataError, match="is outside this text"):
        next(iter(stream(text, cursor=Cursor(0, 0, 1000))))


def test_too_many_processes_are_refused(text: Prepared) -> None:
    with pytest.raises(DataError, match="too few segments of 7 for 500 processes"):
        stream(text, world_size=500)


def test_cached_ids_have_the_smallest_type(text: Prepared) -> None:
    found = stream(text)
    next(iter(found))
    assert {block.dtype for block in found._text._blocks.values()} == {np.dtype(np.uint8)}


def test_a_token_outside_the_vocabulary_is_refused(text: Prepared) -> None:
    tokenizer = {**text.manifest.tokenizer, "vocab_size": 8}
    manifest = text.manifest.model_copy(update={"tokenizer": tokenizer})
    with pytest.raises(DataError, match=r"prepared: block . holds a token outside its vocabulary"):
        next(iter(stream(replace(text, manifest=manifest), seed=None)))
