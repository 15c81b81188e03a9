"""Batches contain exactly the rows of the files."""

from itertools import chain, islice
from pathlib import Path

import pytest
import torch

from outrider.data.plan import LENGTH_STEP, Cursor
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared
from outrider.errors import DataError
from outrider.torch.training.batches import BatchStream, Deal, PlannedBatch, valid_batches
from tests.helpers.corpus import Configure


@pytest.fixture
def pairs(configure: Configure) -> Prepared:
    return prepare(configure(valid_rows=30, shard_rows=50), progress=False)


@pytest.fixture
def running_text(tmp_path: Path, configure: Configure) -> Prepared:
    text = "".join(f"{n}: some words\n\n\ttab {n * n}  blanks \n" for n in range(400))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    config = configure(train={"target": "text.txt"}, valid_fraction=0.1, sequence_length=32)
    return prepare(config, task="language_model", progress=False)


def epoch_of(stream: BatchStream) -> list[PlannedBatch]:
    found = []
    for batch in stream:
        found.append(batch)
        if batch.next_cursor.epoch > stream.cursor.epoch:
            return found
    raise AssertionError


def as_pairs(prepared: Prepared, batches: list[dict[str, torch.Tensor]]) -> list[tuple[str, str]]:
    tokenizer, found = prepared.tokenizer, []
    for batch in batches:
        for source, keep, label in zip(*batch.values(), strict=True):
            source, label = source[keep.bool()].tolist(), label[label != -100].tolist()
            assert source[-1] == label[-1] == tokenizer.eos_id
            found.append((tokenizer.decode(source), tokenizer.decode(label)))
    return found


def corpus(prepared: Prepared) -> list[tuple[str, str]]:
    root = prepared.folder.parent
    sides = [(root / f"train.{side}").read_text().splitlines() for side in ("en", "de")]
    return list(zip(*sides, strict=True))


def test_one_epoch_and_the_held_out_rows_are_the_corpus(pairs: Prepared) -> None:
    stream = BatchStream(pairs, tokens=400, seed=3)
    train = as_pairs(pairs, [batch.tensors for batch in epoch_of(stream)])
    valid = as_pairs(pairs, list(valid_batches(pairs, tokens=400)))
    assert len(train) == 270
    assert len(valid) == 30
    assert sorted(train + valid) == sorted(corpus(pairs))


def test_tensors_are_padded_on_the_right(pairs: Prepared) -> None:
    batch = epoch_of(BatchStream(pairs, tokens=4000, seed=3))[0].tensors
    assert list(batch) == ["input_ids", "attention_mask", "labels"]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    keep = batch["attention_mask"].bool()
    assert (batch["input_ids"][~keep] == 0).all()
    assert (keep[:, 1:] <= keep[:, :-1]).all()
    longest = int(keep.sum(1).max())
    assert keep.all(0).sum() < longest
    assert keep.shape[1] == -(-longest // LENGTH_STEP) * LENGTH_STEP


def test_ranks_divide_the_batches(pairs: Prepared) -> None:
    ranks = [
        epoch_of(BatchStream(pairs, tokens=200, seed=3, deal=Deal(rank, 3, 3))) for rank in range(3)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    assert all(len({b.next_cursor for b in step}) == 1 for step in zip(*ranks, strict=True))
    rows = as_pairs(pairs, [batch.tensors for batches in ranks for batch in batches])
    assert len(rows) == len(set(rows)) == 270


@pytest.mark.parametrize("processes", [1, 2, 3, 6])
def test_an_update_has_the_same_rows_on_any_number_of_processes(
    pairs: Prepared, processes: int
) -> None:
    """Planned for three processes with two batches each; others take their share of the six."""
    updates, batches, planned = 9, 2, 3

    def stream(**options) -> BatchStream:
        return BatchStream(pairs, tokens=200, seed=3, **options)

    usual = [
        list(islice(stream(deal=Deal(rank, planned, planned)), updates * batches))
        for rank in range(planned)
    ]
    each = batches * planned // processes
    for update in range(updates):
        after = usual[0][(update + 1) * batches - 1].next_cursor
        before = usual[0][update * batches - 1].next_cursor if update else None
        wanted = [
            batch.tensors
            for rank in usual
            for batch in rank[update * batches : (update + 1) * batches]
        ]
        dealt = []
        for rank in range(processes):
            deal = Deal(rank, processes, planned, batches)
            mine = list(islice(stream(deal=deal, cursor=before), each))
            assert {one.next_cursor for one in mine} == {after}, "all agree where it goes on"
            dealt += [one.tensors for one in mine]
        assert sorted(as_pairs(pairs, dealt)) == sorted(as_pairs(pairs, wanted))


def test_resuming_gives_the_same_tensors(pairs: Prepared) -> None:
    def batches(cursor: Cursor | None, count: int) -> list[PlannedBatch]:
        stream = BatchStream(pairs, tokens=300, seed=3, cursor=cursor, window_tokens=5000)
        return list(islice(stream, count))

    whole = batches(None, 120)
    assert whole[-1].next_cursor.epoch >= 2
    assert any(batch.next_cursor.group == 1 for batch in whole)
    for at in (0, 17, 60, 100):
        rest = batches(whole[at].next_cursor, 119 - at)
        for left, right in zip(whole[at + 1 :], rest, strict=True):
            assert left.next_cursor == right.next_cursor
            for name, tensor in left.tensors.items():
                assert torch.equal(tensor, right.tensors[name])


def test_cut_rows_keep_their_end(pairs: Prepared) -> None:
    for batch in epoch_of(BatchStream(pairs, tokens=100, seed=3, max_length=8)):
        assert batch.tensors["input_ids"].shape[1] <= 8
        assert batch.tensors["labels"].shape[1] <= 8
        assert ((batch.tensors["labels"] == 1).sum(1) == 1).all()


def test_running_text_keeps_every_character(running_text: Prepared) -> None:
    text = (running_text.folder.parent / "text.txt").read_text()
    batches = list(valid_batches(running_text, tokens=1))
    rows = [batch["labels"][batch["labels"] != -100].tolist() for batch in batches]
    held = int(len(text) * 0.1)
    assert sum(len(row) for row in rows) == held + 1
    end = text[len(text) - held :]
    assert sorted(running_text.tokenizer.decode(row) for row in rows) == sorted(
        end[i : i + 31] for i in range(0, held, 31)
    )


def test_rows_of_running_text_start_with_bos_which_is_not_a_label(running_text: Prepared) -> None:
    bos = running_text.tokenizer.bos_id
    for batch in epoch_of(BatchStream(running_text, tokens=200, seed=3)):
        inputs, labels = batch.tensors["input_ids"], batch.tensors["labels"]
        assert (inputs[:, 0] == bos).all()
        assert (labels[:, 0] == -100).all()
        keep = labels[:, 1:] != -100
        assert torch.equal(inputs[:, 1:][keep], labels[:, 1:][keep])


def test_epochs_cut_running_text_at_different_places(running_text: Prepared) -> None:
    def epoch(number: int) -> list[list[int]]:
        stream = BatchStream(running_text, tokens=200, seed=3, cursor=Cursor(number))
        labels = [batch.tensors["labels"] for batch in epoch_of(stream)]
        return [row[row != -100].tolist() for label in labels for row in label]

    first, second = epoch(0), epoch(1)
    assert not set(map(tuple, first)) & set(map(tuple, second))
    assert sorted(chain(*first)) == sorted(chain(*second))
    assert epoch(1) == second


def test_a_missing_split_is_named(configure: Configure) -> None:
    prepared = prepare(configure(), progress=False)
    with pytest.raises(DataError, match=r"has no split 'valid', only train; name data.valid"):
        next(valid_batches(prepared, tokens=100))


def test_a_damaged_shard_is_named(pairs: Prepared) -> None:
    (pairs.folder / "train-00002.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"train-00002.parquet: damaged or missing .* --force"):
        list(islice(BatchStream(pairs, tokens=100, seed=3), 1000))


def test_sources_may_omit_the_end(pairs: Prepared) -> None:
    shown = next(valid_batches(pairs, tokens=400))
    hidden = next(valid_batches(pairs, tokens=400, source_end=False))
    assert torch.equal(shown["input_ids"], hidden["input_ids"])
    assert torch.equal(shown["labels"], hidden["labels"])
    ends = (shown["input_ids"] == pairs.tokenizer.eos_id).long()
    assert torch.equal(shown["attention_mask"] - ends, hidden["attention_mask"])


def test_right_to_left_model_learns_reversed_labels(pairs: Prepared) -> None:
    """Every row is reversed with the end last, also for cut rows and in training."""

    def rows(**options) -> list[dict[str, torch.Tensor]]:
        train = epoch_of(BatchStream(pairs, tokens=400, seed=3, **options))
        valid = valid_batches(pairs, tokens=400, **options)
        return [*(batch.tensors for batch in train), *valid]

    end = pairs.tokenizer.eos_id
    for length in (1024, 12):
        found = rows(max_length=length), rows(max_length=length, right_to_left=True)
        for usual, turned in zip(*found, strict=True):
            for key in ("input_ids", "attention_mask"):
                assert torch.equal(usual[key], turned[key])
            for one, other in zip(usual["labels"], turned["labels"], strict=True):
                *text, last = one[one != -100].tolist()
                assert last == end
                assert other[other != -100].tolist() == [*reversed(text), end]
                assert torch.equal(one == -100, other == -100)
