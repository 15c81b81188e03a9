"""Augmentation: the changes, their share, and the same changes after a resume."""

from itertools import islice

import pytest
import torch

from outrider.data.augment import change_all
from outrider.data.config import AugmentConfig
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared
from outrider.torch.training.batches import BatchStream
from tests.helpers.corpus import Configure, sentences

Pair = tuple[str, str]


@pytest.fixture
def pairs(configure: Configure) -> Prepared:
    sources = [f"{n} {line}" for n, line in enumerate(sentences(600))]
    targets = [f"{n} {line}" for n, line in enumerate(sentences(600, seed=1))]
    letters = ["ABCDEFGHIJKLMNOPQRSTUVWXYZÜÖ"] * 2, ["".join(map(chr, range(33, 127)))] * 2
    return prepare(
        configure([*sources, *letters[0], *letters[1]], [*targets, *letters[1], *letters[0]],
                  shard_rows=200, clean={"drop_duplicates": False}),
        progress=False,
    )  # fmt: skip


def texts(prepared: Prepared, epoch: int = 0, **augment: float) -> dict[Pair, int]:
    """Return the pairs of one epoch, each with the number of rows of its batch."""
    stream = BatchStream(
        prepared,
        tokens=4000,
        seed=3,
        max_length=513,
        augment=AugmentConfig(**augment) if augment else None,
    )
    stream.cursor = type(stream.cursor)(epoch=epoch)
    found: dict[Pair, int] = {}
    tokenizer = prepared.tokenizer
    for batch in stream:
        tensors = batch.tensors
        assert tensors["labels"].numel() <= 4000
        for source, labels in zip(tensors["input_ids"], tensors["labels"], strict=True):
            target = labels[labels != -100]
            found[tokenizer.decode(source.tolist()), tokenizer.decode(target.tolist())] = len(
                source
            )
        if batch.next_cursor.epoch > epoch:
            return found
    raise AssertionError


def changed(prepared: Prepared, epoch: int = 0, **augment: float) -> list[Pair]:
    plain = texts(prepared)
    return sorted(pair for pair in texts(prepared, epoch, **augment) if pair not in plain)


def test_a_share_of_the_rows_is_changed_in_every_epoch(pairs: Prepared) -> None:
    first, again, second = (changed(pairs, epoch, final_mark=0.25) for epoch in (0, 0, 1))
    assert first == again != second
    assert 100 < len(first) < 200
    assert all(source[-1] != "." != target[-1] for source, target in first)
    assert len(changed(pairs, final_mark=1.0)) == 600


def test_each_kind_of_change(pairs: Prepared) -> None:
    plain = dict(texts(pairs))
    cased = changed(pairs, casing=1.0)
    assert {source.isupper() for source, _ in cased} == {True, False}
    assert all(source == source.upper() or source == source.lower() for source, _ in cased)
    assert all(target == target.upper() for source, target in cased if source.isupper())
    targets = {target: source for source, target in plain}
    for source, target in changed(pairs, typos=1.0):
        assert abs(len(source) - len(targets[target])) <= 2  # a blank may disappear with a letter
        assert source[0] == targets[target][0]
    joined = changed(pairs, joined=1.0)
    for source, target in [pair for pair in joined if pair[0][0].isdigit()]:
        left, right = (side.split(". ", 1)[0] for side in (source, target))
        assert (f"{left}.", f"{right}.") in plain
    marks = changed(pairs, placeholders=1.0)
    assert {word for source, _ in marks for word in ("{0}", "</b>", "%s") if word in source}
    for source, target in marks:
        tag = source.startswith("<")
        words = {*source.split()} & {*target.split()}
        assert tag == target.startswith("<")
        assert tag or words


def test_augmented_rows_respect_the_maximum_length(pairs: Prepared) -> None:
    plain = texts(pairs)
    stream = BatchStream(
        pairs, tokens=4000, seed=3, max_length=40, augment=AugmentConfig(joined=1.0)
    )
    for batch in islice(stream, 20):
        assert batch.tensors["labels"].shape[1] <= 40
    assert plain


def test_a_resumed_stream_gives_the_same_batches(pairs: Prepared) -> None:
    augment = AugmentConfig(final_mark=0.1, typos=0.2, joined=0.3, casing=0.1, placeholders=0.1)
    stream = BatchStream(pairs, tokens=900, seed=3, augment=augment)
    whole = list(islice(stream, 60))
    assert whole[-1].next_cursor.epoch >= 1
    for place in (1, 17, 41):
        cursor = whole[place - 1].next_cursor
        resumed = BatchStream(pairs, tokens=900, seed=3, augment=augment, cursor=cursor)
        for expected, found in zip(whole[place:], resumed, strict=False):
            assert expected.next_cursor == found.next_cursor
            for name, tensor in expected.tensors.items():
                assert torch.equal(tensor, found.tensors[name])


@pytest.mark.parametrize("kind", ["final_mark", "casing", "typos", "joined", "placeholders"])
def test_a_test_of_one_kind_changes_every_line(kind: str) -> None:
    lines = [(f"Line {n} of these.", f"Zeile {n} davon.") for n in range(40)]
    made = change_all(lines, kind, seed=1)
    assert sum(new != old for new, old in zip(made, lines, strict=True)) >= 36
    assert made == change_all(lines, kind, seed=1)
    if kind == "final_mark":
        assert made[7] == ("Line 7 of these", "Zeile 7 davon")
    if kind == "joined":
        assert all(source.count("Line") == target.count("Zeile") == 2 for source, target in made)
