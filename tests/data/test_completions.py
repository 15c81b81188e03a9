"""Labels of completions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.data.labels import Completions
from outrider.torch.nn.loss import IGNORED

marks = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)
rows = st.lists(st.integers(0, 3), min_size=1, max_size=24)


def counted(row: list[int], after: tuple[int, ...], until: tuple[int, ...]) -> list[int]:
    """Read the row from left to right, as in the equation."""
    labels, within = [], False
    for place, token in enumerate(row):
        labels.append(token if within else IGNORED)
        read = tuple(row[: place + 1])
        if read[-len(until) :] == until:
            within = False
        elif read[-len(after) :] == after:
            within = True
    return labels


@given(row=rows, after=marks, until=marks)
def test_labels_are_those_between_the_marks(
    row: list[int], after: tuple[int, ...], until: tuple[int, ...]
) -> None:
    found = Completions(after, until).labels(np.array([row, row[::-1]]))
    assert found.tolist() == [counted(row, after, until), counted(row[::-1], after, until)]


def test_padding_is_never_a_label() -> None:
    label_BT = np.array([[1, 5, 2, 3, 0, IGNORED], [5, IGNORED, IGNORED, *[IGNORED] * 3]])
    found = Completions((5,), (0,)).labels(label_BT)
    assert found.tolist() == [
        [IGNORED, IGNORED, 2, 3, 0, IGNORED],
        [IGNORED] * 6,
    ]


@given(before=rows, row=rows, after=marks, until=marks)
def test_a_decided_row_does_not_depend_on_earlier_tokens(
    before: list[int], row: list[int], after: tuple[int, ...], until: tuple[int, ...]
) -> None:
    completions = Completions(after, until)
    if completions.decided(np.array(row)):
        alone, whole = ([*one, 9] for one in (row, before + row))
        assert counted(alone, after, until)[-1] == counted(whole, after, until)[-1]
