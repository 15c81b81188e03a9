"""The batch plan: deterministic, complete, within budget, resumable from any cursor."""

import json
from dataclasses import asdict
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.data.plan import (
    LENGTH_STEP,
    ROW_STEP,
    Batch,
    BatchPlan,
    Cursor,
    padded_length,
    permutation,
    random_below,
)
from outrider.errors import DataError


def make_plan(
    block_rows: list[int], lengths_seed: int = 0, longest: int = 30, **options: int
) -> BatchPlan:
    rows = np.array(block_rows)
    dice = np.random.default_rng(lengths_seed)
    source, target = dice.integers(1, longest + 1, (2, rows.sum()))
    starts = np.cumsum(rows) - rows

    def lengths(blocks: np.ndarray, _: int) -> tuple[np.ndarray, np.ndarray]:
        index = np.concatenate([starts[b] + np.arange(rows[b]) for b in blocks])
        return source[index], target[index]

    return BatchPlan(rows, lengths, **{"seed": 1, "tokens": 64, **options})  # type: ignore[arg-type]


def corpus_rows(plan: BatchPlan, batch: Batch, rank: int) -> list[int]:
    """Return the corpus-wide row numbers of a rank's share."""
    starts = np.cumsum(plan.block_rows) - plan.block_rows
    blocks = batch.group.blocks
    number = np.concatenate([starts[b] + np.arange(plan.block_rows[b]) for b in blocks])
    return number[batch.rows(rank)].tolist()


def epoch_of(plan: BatchPlan, epoch: int) -> list[Batch]:
    found = []
    for batch, following in plan.batches_from(Cursor(epoch)):
        found.append(batch)
        if following.epoch > epoch:
            return found
    raise AssertionError


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    world_size = draw(st.integers(1, 5))
    block_rows = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    if sum(block_rows) < world_size:
        block_rows.append(world_size)
    return make_plan(
        block_rows,
        draw(st.integers(0, 99)),
        draw(st.sampled_from([1, 7, 30])),
        seed=draw(st.integers(-5, 2**40)),
        tokens=draw(st.integers(1, 300)),
        world_size=world_size,
        max_length=draw(st.sampled_from([3, 20, 1000])),
        window_rows=draw(st.integers(1, 60)),
    )


@settings(max_examples=150)
@given(plan=plans(), epoch=st.integers(0, 3))
def test_every_row_occurs_once_per_epoch_and_no_rank_is_idle(plan: BatchPlan, epoch: int) -> None:
    seen = []
    for batch in epoch_of(plan, epoch):
        shares = [corpus_rows(plan, batch, rank) for rank in range(plan.world_size)]
        assert all(shares)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        seen += chain(*shares)
    assert sorted(seen) == list(range(plan.block_rows.sum()))


@settings(max_examples=150)
@given(plan=plans())
def test_batches_stay_within_the_token_budget(plan: BatchPlan) -> None:
    doubled = set()
    for batch in epoch_of(plan, 0):
        source, target = plan.lengths(batch.group.blocks, 0)
        padded = np.minimum(np.maximum(source, target) + 1, plan.max_length)
        for rank in range(plan.world_size):
            rows = batch.rows(rank)
            if len(rows) > 1 and len(rows) * padded[rows].max() > plan.tokens:
                assert len(rows) == 2
                doubled.add(batch.cursor)
    # Once per group, the last rows may be fewer than the ranks; they join another batch.
    assert plan.world_size > 1 or not doubled
    assert len(doubled) == len({cursor.group for cursor in doubled})


@settings(max_examples=100)
@given(plan=plans(), data=st.data())
def test_resuming_from_any_cursor_gives_the_rest_of_the_stream(
    plan: BatchPlan, data: st.DataObject
) -> None:
    def stream(cursor: Cursor, count: int) -> list[tuple[list[int], Cursor]]:
        some = islice(plan.batches_from(cursor), count)
        return [(corpus_rows(plan, b, plan.world_size - 1), following) for b, following in some]

    length = 2 * plan.batches_in(0) + 3
    whole = stream(Cursor(), length)
    at = data.draw(st.integers(0, length - 2))
    saved = json.loads(json.dumps(asdict(whole[at][1])))
    assert stream(Cursor(**saved), length - at - 1) == whole[at + 1 :]


def test_cursors_name_the_next_batch() -> None:
    plan = make_plan([20, 20, 20], window_rows=20)
    cursor = Cursor()
    for batch, following in islice(plan.batches_from(Cursor()), 40):
        assert batch.cursor == cursor
        cursor = following
    assert cursor.epoch > 0


def test_seed_and_epoch_change_the_order() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        plan = make_plan([50, 50], seed=seed)
        return [corpus_rows(plan, batch, 0) for batch in epoch_of(plan, epoch)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_batches_have_rows_of_similar_length_from_distant_blocks() -> None:
    plan = make_plan([500] * 10, tokens=1000, window_rows=2000)
    used = padded = 0
    for batch in epoch_of(plan, 0):
        target = plan.lengths(batch.group.blocks, 0)[1][batch.rows()]
        used, padded = used + target.sum(), padded + len(target) * target.max()
    assert used / padded > 0.9
    groups = plan.groups(0)
    assert [len(blocks) for blocks in groups] == [4, 6]
    assert sorted(np.concatenate(groups)) == list(range(10))
    assert groups[0].tolist() != [0, 1, 2, 3]


def test_batches_have_few_shapes() -> None:
    lengths = np.arange(4_000) % 60 + 1
    plan = BatchPlan(np.array([4_000]), lambda _, __: (lengths, lengths), seed=0, tokens=2048)
    group = plan.group(0, 0, np.array([0]))
    shapes = set()
    for batch in range(len(group)):
        rows = group.rows(batch, 0)
        shapes.add((len(rows), int(padded_length(lengths[rows] + 1, 1024).max())))
    assert len(group) > 60
    assert len(shapes) <= 60 // LENGTH_STEP + 2
    assert all(rows % ROW_STEP == 0 for rows, _ in sorted(shapes)[1:]), "but for one rest"


def test_the_rest_of_an_epoch_joins_its_last_group() -> None:
    plan = make_plan([100, 3], window_rows=50)
    assert [len(blocks) for blocks in plan.groups(0)] == [2]


def test_random_numbers_are_splitmix64() -> None:
    """Transcribed: runs resume identically under any NumPy version."""

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    state = mix(mix(0 ^ 7) ^ 2)
    assert random_below(1000, 7, 2) == state % 1000
    keys = [mix((state + i) % 2**64) for i in range(50)]
    assert permutation(50, 7, 2).tolist() == sorted(range(50), key=keys.__getitem__)


def test_permutations_are_uniform() -> None:
    counts = np.zeros((5, 5))
    for seed in range(2000):
        counts[np.arange(5), permutation(5, seed)] += 1
    assert np.abs(counts / 2000 - 0.2).max() < 0.04


def test_more_processes_than_rows_is_an_error() -> None:
    with pytest.raises(DataError, match="3 training rows cannot be divided among 4 processes"):
        make_plan([3], world_size=4)


@pytest.mark.parametrize("cursor", [Cursor(0, 9, 0), Cursor(0, 0, 999)])
def test_a_cursor_of_another_plan_is_an_error(cursor: Cursor) -> None:
    with pytest.raises(DataError, match="is outside this batch plan"):
        next(make_plan([30]).batches_from(cursor))
