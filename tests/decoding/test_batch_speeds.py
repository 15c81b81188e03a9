"""What batches really took decides between two ways that give the same text."""

import pytest

from outrider.decoding.batch_speeds import RETRY, TRIED, BatchSpeeds

SECONDS = {True: 2.0, False: 1.0}


def decode(speeds: BatchSpeeds, rows: int, batches: int, seconds: dict[bool, float]) -> list[bool]:
    ways = []
    for _ in range(batches):
        drafting = speeds.drafting(rows)
        ways.append(drafting)
        first = ways.count(drafting) == 1
        taken = seconds[drafting] * (50 if first else 1)  # kernels are prepared
        speeds.note(rows, drafting=drafting, tokens=10, seconds=taken)
    return ways


@pytest.mark.parametrize("faster", [True, False])
def test_both_ways_are_tried_and_the_faster_one_stays(faster: bool) -> None:
    speeds = BatchSpeeds()
    seconds = {faster: 1.0, not faster: 1.3}
    tried = decode(speeds, 8, 2 * TRIED + 2, seconds)
    assert tried[:2] == [True, False]
    later = decode(speeds, 8, 4 * RETRY, seconds)
    assert later.count(faster) == 4 * RETRY - 4


def test_sizes_are_judged_apart() -> None:
    speeds = BatchSpeeds()
    decode(speeds, 8, 2 * TRIED + 3, SECONDS)
    assert speeds.drafting(1)
    decode(speeds, 1, 2 * TRIED + 3, {True: 1.0, False: 2.0})
    assert speeds.drafting(1)
    assert not speeds.drafting(8)


def test_a_machine_that_changes_is_noticed() -> None:
    speeds = BatchSpeeds()
    decode(speeds, 8, 2 * TRIED + 6, SECONDS)
    later = decode(speeds, 8, 16 * RETRY, {True: 0.5, False: 1.0})
    assert all(later[-5:])


def test_a_disturbed_batch_does_not_decide() -> None:
    speeds = BatchSpeeds()
    decode(speeds, 8, 2 * TRIED + 6, SECONDS)
    speeds.note(8, drafting=False, tokens=10, seconds=90.0)
    assert not speeds.drafting(8)


def test_batches_that_say_nothing_are_no_evidence() -> None:
    speeds = BatchSpeeds()
    for _ in range(40):
        speeds.note(8, drafting=speeds.drafting(8), tokens=0, seconds=1.0)
    assert speeds.drafting(8)
    assert decode(speeds, 8, 4 * RETRY, SECONDS).count(False) > 2 * RETRY


def test_the_reason_is_what_was_seen() -> None:
    speeds = BatchSpeeds()
    reasons = []
    for _ in range(2 * TRIED + 2):
        reasons.append(speeds.objection(8))
        drafting = reasons[-1] is None
        speeds.note(8, drafting=drafting, tokens=10, seconds=SECONDS[drafting])
    assert reasons[:4] == [None, "timed both ways, to compare"] * 2
    assert speeds.objection(8) == "drafting was slower"
