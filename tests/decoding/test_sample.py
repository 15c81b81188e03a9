"""Sampling: its distribution, and independence of a row from other rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding import DecodeConfig, Request
from outrider.decoding.sampling import choose
from outrider.options import Sampling
from tests.helpers.loops import greedy, sample

LOGITS = torch.tensor([[1.0, 3.0, 2.0, 0.0, -1.0]])
GRID = ((torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000)[:, None]


def share(**options) -> torch.Tensor:
    """The share of the unit interval of each token: its probability, to grid precision."""
    sampling = DecodeConfig(strategy="sample", **options).sampling
    logits = LOGITS.expand(len(GRID), -1)
    tokens = choose(logits, GRID, sampling)  # tensors, as on a GPU
    assert choose(logits.numpy(), GRID.numpy(), sampling).tolist() == tokens.tolist()
    return tokens.flatten().bincount(minlength=5) / len(GRID)


def test_samples_follow_the_tempered_softmax() -> None:
    expected = (LOGITS[0].double() / 0.7).softmax(-1)
    torch.testing.assert_close(share(temperature=0.7).double(), expected, atol=2e-5, rtol=0)


def test_top_k_keeps_the_k_most_likely() -> None:
    expected = torch.zeros(5, dtype=torch.float64)
    expected[[1, 2]] = LOGITS[0, [1, 2]].double().softmax(-1)
    torch.testing.assert_close(share(top_k=2).double(), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 1), (0.65, 2), (0.9, 3), (1.0, 5)])
def test_top_p_keeps_the_fewest_tokens_with_that_mass(top_p: float, kept: int) -> None:
    order = LOGITS[0].argsort(descending=True)[:kept]
    expected = torch.zeros(5, dtype=torch.float64)
    expected[order] = LOGITS[0, order].double().softmax(-1)
    torch.testing.assert_close(share(top_p=top_p).double(), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_interval_never_give_a_forbidden_token(uniform: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    token = choose(logits, torch.tensor([[uniform]], dtype=torch.float64), Sampling())
    assert token.item() in (1, 2)


@settings(max_examples=40, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**31), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    top_k=st.none() | st.integers(1, 5),
    top_p=st.none() | st.floats(0.1, 1.0),
)
def test_a_row_depends_on_its_seed_alone(toy, seeds, order, top_k, top_p) -> None:
    config = DecodeConfig(strategy="sample", max_new_tokens=8, top_k=top_k, top_p=top_p)
    requests = [
        Request(source=(n,), prompt=(2,) * (n % 3), seed=seed, max_new_tokens=3 + n)
        for n, seed in enumerate(seeds)
    ]
    alone = {id(r): sample(toy(), [r], config)[0] for r in requests}
    shuffled = requests.copy()
    order.shuffle(shuffled)
    together = sample(toy(), shuffled, config)
    assert together == [alone[id(r)] for r in shuffled]


def test_seeds_differ_and_repeat(toy) -> None:
    config = DecodeConfig(strategy="sample", max_new_tokens=12, min_new_tokens=12)
    requests = [Request(seed=seed) for seed in (1, 2, 1)]
    one, two, again = sample(toy(), requests, config)
    assert one == again != two
    (default,) = sample(toy(), [Request()], config.changed(seed=2))
    assert default == two


def test_top_1_is_greedy(toy) -> None:
    requests = [Request(source=(n,)) for n in range(10)]
    drawn = sample(toy(), requests, DecodeConfig(top_k=1, max_new_tokens=9))
    assert drawn == greedy(toy(), requests, DecodeConfig(max_new_tokens=9))


def test_no_requests_give_no_output(toy) -> None:
    assert sample(toy(), [], DecodeConfig(strategy="sample")) == []


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}], ids=str)
def test_the_lowest_temperature_is_greedy_and_the_highest_gives_allowed_tokens(
    toy, options
) -> None:
    requests = [Request(source=(n,), seed=n) for n in range(10)]
    expected = greedy(toy(), requests, DecodeConfig(max_new_tokens=9))
    cold = DecodeConfig(temperature=1e-6, max_new_tokens=9, **options)
    assert sample(toy(), requests, cold) == expected
    colder = cold.changed(temperature=1e-40)
    assert sample(toy(), requests, colder) == expected
    for temperature in (1e6, 1e300):
        hot = cold.changed(temperature=temperature, suppress=(2,))
        said = {token for one in sample(toy(), requests, hot) for token in one.tokens}
        assert said <= {0, 3, 4, 5}
