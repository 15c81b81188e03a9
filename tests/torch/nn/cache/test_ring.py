"""A ring holds the newest vectors of ragged rows through blocks, rollbacks and reordering."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.torch.nn.cache import SLACK, Step
from outrider.torch.nn.cache.ring import Ring

CPU = torch.device("cpu")


def new_ring(rows: int, capacity: int, back: int) -> Ring:
    return Ring(rows, capacity, back=back, like=torch.zeros(2, dtype=torch.float64))


def before(x: torch.Tensor, end: int, back: int) -> torch.Tensor:
    """The `back` vectors before `end`, with zeros before the first."""
    return torch.cat([torch.zeros(back, 2, dtype=x.dtype), x[:end]])[-back:] if back else x[:0]


@given(data=st.data(), back=st.integers(0, 5), prompt=st.sampled_from([1, 30, 150]))
def test_returns_the_vectors_before_a_block(data: st.DataObject, back: int, prompt: int) -> None:
    rows, total = 3, prompt + 120
    x = torch.randn(rows, total + SLACK, 2, dtype=torch.float64)
    ring = new_ring(rows, total + SLACK, back)
    lengths, block = [0] * rows, prompt
    for _ in range(6):
        first = not any(lengths)
        kept = [data.draw(st.integers(1 if first else 0, block)) for _ in range(rows)]
        step = Step(lengths, block, kept if first else [block] * rows, CPU)
        new = torch.stack([x[row, n : n + block] for row, n in enumerate(lengths)])
        out = ring.extend(new, step)
        for row, n in enumerate(lengths):
            assert torch.equal(out[row], torch.cat([before(x[row], n, back), new[row]]))
        lengths = [n + more for n, more in zip(lengths, kept, strict=True)]
        if not any(lengths):
            lengths[0] = 1
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(rows)))
            ring.select(torch.tensor(order))
            x, lengths = x[order], [lengths[row] for row in order]
        block = min(data.draw(st.integers(1, 20)), SLACK)


@pytest.mark.parametrize("capacity", [1, 3, 1000])
def test_its_size_is_limited(capacity: int) -> None:
    ring = new_ring(2, capacity, 4)
    assert ring.nbytes == 2 * min(capacity, 4 + SLACK) * 2 * 8
    assert ring.wraps == (capacity > 4 + SLACK)
