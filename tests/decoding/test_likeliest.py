"""The fast argmax against torch's, ties and forbidden tokens included."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.decoding.likeliest import likeliest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    levels=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_is_argmax_and_the_first_of_equals(dtype, shape, levels, seed) -> None:
    dice = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (*shape, 7), generator=dice).to(dtype)
    scores[scores == levels - 1] = -torch.inf
    expected = [row.index(max(row)) for row in scores.reshape(-1, 7).tolist()]
    assert likeliest(scores).flatten().tolist() == expected
    assert likeliest(scores).shape == scores.shape[:-1]
    with torch.inference_mode():
        assert likeliest(scores[..., :] + 0).flatten().tolist() == expected
