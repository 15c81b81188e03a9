"""Strided attention equals its equation, with all three uses of its factors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.torch.nn.attention import HeadShape, build_attention, strided
from outrider.torch.nn.attention.strided import Attention, Config
from outrider.torch.nn.cache import SLACK, CacheSpec, Step
from tests.helpers.small_tiles import assert_equation, largest_product, seen_by_loops

USES = {
    "merge": {},
    "factor 1": {"use": "interleave", "factor": 1},
    "factor 2": {"use": "interleave", "factor": 2},
}


def predicate(stride: int, use: str):
    def sees(i: int, j: int) -> bool:
        near = abs(i - j) <= stride
        far = abs(i - j) % stride == 0
        return {"merge": near or far, "factor 1": near, "factor 2": far}[use]

    return sees


@given(
    length=st.integers(1, 40),
    stride=st.integers(1, 9),
    use=st.sampled_from(sorted(USES)),
    causal=st.booleans(),
    real=st.integers(1, 40),
    seed=st.integers(0, 2**16),
)
def test_matches_equation_and_its_gradient(
    length: int, stride: int, use: str, causal: bool, real: int, seed: int
) -> None:
    spec = {"kind": "strided", "stride": stride, **USES[use]}
    sees = predicate(stride, use)
    assert_equation(spec, causal=causal, length=length, real=real, sees=sees, seed=seed)


@given(
    length=st.integers(1, 60),
    stride=st.integers(1, 12),
    use=st.sampled_from(sorted(USES)),
    causal=st.booleans(),
)
def test_cost_counts_the_pairs_of_the_pattern(
    length: int, stride: int, use: str, causal: bool
) -> None:
    config = Config(stride=stride, **USES[use])
    attention = Attention(config, causal=causal, shape=HeadShape(1, 1, 4))
    seen = seen_by_loops(length, predicate(stride, use))
    assert attention.cost(length).pairs == int((seen.tril() if causal else seen).sum())
    assert not attention.complete(length) or seen.all()


def test_heads_can_have_one_factor_each() -> None:
    config = Config(stride=4, use="per_head")
    attention = Attention(config, causal=True, shape=HeadShape(6, 3, 4))
    at = torch.arange(30)
    seen = attention.heads_see(at[:, None], at[None])
    for head, use in enumerate(["factor 1"] * 2 + ["factor 2"] * 4):
        assert torch.equal(seen[head], seen_by_loops(30, predicate(4, use)).tril())


def test_long_sequences_run_in_tiles() -> None:
    attention = Attention(Config(stride=40), causal=True, shape=HeadShape(1, 1, 4))
    assert largest_product(attention, 1600) == 64 * (64 + 40)


@pytest.mark.parametrize("use", ["merge", "factor 2"])
def test_a_step_reads_only_visible_keys(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    widest = 0
    real = strided.attend

    def attend(q, k, v, **options):
        nonlocal widest
        widest = max(widest, k.shape[2])
        return real(q, k, v, **options)

    spec = {"kind": "strided", "stride": 8, **USES[use]}
    attention = build_attention(spec, causal=True, shape=HeadShape(2, 1, 4)).eval()
    q, k, v = (torch.randn(2, h, 400, 4, dtype=torch.float64) for h in (2, 1, 1))
    whole = attention.reference(q, k, v)
    cpu = torch.device("cpu")
    cache = attention.new_cache(CacheSpec(2, 400, 1, 4, torch.float64, cpu))
    attention.extend(*(x[:, :, :390] for x in (q, k, v)), cache, Step([0, 0], 390, [390] * 2, cpu))
    monkeypatch.setattr(strided, "attend", attend)
    for at in range(390, 400):
        step = Step([at, at], 1, [1, 1], cpu)
        out = attention.extend(*(x[:, :, at : at + 1] for x in (q, k, v)), cache, step)
        torch.testing.assert_close(out, whole[:, :, at : at + 1], rtol=1e-10, atol=1e-10)
    assert widest == 50 + (7 if use == "merge" else 0)


def test_only_the_window_uses_a_ring() -> None:
    def slots(**options) -> int:
        return Attention(
            Config(stride=256, **options), causal=True, shape=HeadShape(2, 2, 4)
        ).slots(65_536)

    assert slots(use="interleave", factor=1) == 256 + SLACK
    assert slots(use="interleave", factor=2) == slots() == 65_536
    assert slots(use="per_head") == (256 + SLACK + 65_536) // 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, r"attention\.stride: got 0, expected 1 or more"),
        ({"use": "both"}, r"attention\.use: unknown 'both'; expected one of"),
        ({"use": "interleave"}, r"attention\.factor: got None, expected 1 or 2"),
        ({"factor": 1}, r"attention\.factor: has no meaning with use: merge"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**options)


def test_one_head_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match=r"attention\.use: per_head needs two key-value heads"):
        Attention(Config(use="per_head"), causal=True, shape=HeadShape(4, 1, 4))
