"""The counts of rounds small enough to count by hand."""

import pytest

from outrider.decoding import Round, Statistics


def test_counts_by_position() -> None:
    stats = Statistics()
    stats.count(Round((5, 6, 7), 3, 8), 4)  # all accepted, and a bonus token
    stats.count(Round((5, 6, 7), 1, 9), 2)  # the second was corrected
    stats.count(Round((5,), 1, None), 1)  # the row ended inside its draft
    stats.count(Round((), 0, 4), 1)  # no draft
    assert (stats.rounds, stats.tokens, stats.tokens_per_round) == (4, 8, 2.0)
    assert stats.drafted == [3, 2, 2]
    assert stats.judged == [3, 2, 1]
    assert stats.accepted == [3, 1, 1]
    assert stats.acceptance_by_position == [1.0, 0.5, 0.5]
    assert stats.acceptance == pytest.approx(5 / 6)


def test_empty_statistics() -> None:
    stats = Statistics()
    assert (stats.tokens_per_round, stats.acceptance, stats.acceptance_by_position) == (0, 0, [])
    assert stats.as_dict()["seconds"]["loop"] == 0.0


def test_a_note_is_kept_once() -> None:
    stats = Statistics()
    for text in ("a", "b", "a"):
        stats.note(text)
    assert stats.notes == ["a", "b"]
