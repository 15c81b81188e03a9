"""Fixed attention equals its equation, with all three uses of its factors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.torch.nn.attention import HeadShape, build_attention
from outrider.torch.nn.attention.fixed import Attention, Config, SummaryCache
from outrider.torch.nn.cache import SLACK, CacheSpec, Step
from tests.helpers.small_tiles import assert_equation, largest_product, seen_by_loops

USES = {
    "merge": {},
    "factor 1": {"use": "interleave", "factor": 1},
    "factor 2": {"use": "interleave", "factor": 2},
}
SIZES = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def predicate(stride: int, summary: int, use: str):
    def sees(i: int, j: int) -> bool:
        near = i // stride == j // stride
        far = j % stride in range(stride - summary, stride) or i == j
        return {"merge": near or far, "factor 1": near, "factor 2": far}[use]

    return sees


@given(
    length=st.integers(1, 40),
    sizes=SIZES,
    use=st.sampled_from(sorted(USES)),
    causal=st.booleans(),
    real=st.integers(1, 40),
    seed=st.integers(0, 2**16),
)
def test_matches_equation_and_its_gradient(
    length: int, sizes: tuple[int, int], use: str, causal: bool, real: int, seed: int
) -> None:
    stride, summary = sizes
    spec = {"kind": "fixed", "stride": stride, "summary": summary, **USES[use]}
    sees = predicate(stride, summary, use)
    assert_equation(spec, causal=causal, length=length, real=real, sees=sees, seed=seed)


@given(
    length=st.integers(1, 60),
    sizes=SIZES,
    use=st.sampled_from(sorted(USES)),
    causal=st.booleans(),
)
def test_cost_counts_the_pairs_of_the_pattern(
    length: int, sizes: tuple[int, int], use: str, causal: bool
) -> None:
    stride, summary = sizes
    config = Config(stride=stride, summary=summary, **USES[use])
    attention = Attention(config, causal=causal, shape=HeadShape(1, 1, 4))
    seen = seen_by_loops(length, predicate(stride, summary, use))
    assert attention.cost(length).pairs == int((seen.tril() if causal else seen).sum())
    assert not attention.complete(length) or seen.all()


@settings(max_examples=25)
@given(data=st.data(), use=st.sampled_from(["merge", "factor 2", "per_head"]))
def test_summaries_follow_rollbacks_and_dropped_rows(data: st.DataObject, use: str) -> None:
    """Far beyond the ring, rows grow, roll back and are reordered; all outputs equal one pass."""
    total, rows, cpu = 260, 2, torch.device("cpu")
    spec = {"kind": "fixed", "stride": 7, "summary": 2, **USES.get(use, {"use": use})}
    attention = build_attention(spec, causal=True, shape=HeadShape(2, 2, 4)).eval()
    q, k, v = (torch.randn(rows, 2, total, 4, dtype=torch.float64) for _ in "qkv")
    whole = attention.reference(q, k, v)
    cache = attention.new_cache(CacheSpec(rows, total, 2, 4, torch.float64, cpu))
    lengths = data.draw(st.lists(st.integers(1, 180), min_size=rows, max_size=rows))
    prompt = max(lengths)
    attention.extend(
        *(x[:, :, :prompt] for x in (q, k, v)), cache, Step([0] * rows, prompt, lengths, cpu)
    )
    for _ in range(6):
        pick = data.draw(st.permutations(range(rows)))
        cache.select(torch.tensor(pick), max(lengths))
        lengths = [lengths[row] for row in pick]
        q, k, v, whole = (x[list(pick)] for x in (q, k, v, whole))
        tokens = min(data.draw(st.integers(1, SLACK)), total - max(lengths))
        if tokens < 1:
            break
        at = torch.tensor(lengths)[:, None] + torch.arange(tokens)
        now = [torch.stack([x[row][:, at[row]] for row in range(rows)]) for x in (q, k, v, whole)]
        step = Step(lengths, tokens, [tokens] * rows, cpu)
        out = attention.extend(*now[:3], cache, step)
        torch.testing.assert_close(out, now[3], rtol=1e-10, atol=1e-10)
        lengths = [n + data.draw(st.integers(0, tokens)) for n in lengths]


def test_cache_grows_only_with_the_summaries() -> None:
    attention = Attention(Config(stride=256, summary=4), causal=True, shape=HeadShape(1, 1, 4))
    assert attention.slots(65_536) == 255 + SLACK + 4 * 256
    room = CacheSpec(1, 65_536, 1, 4, torch.float32, torch.device("cpu"))
    cache = attention.new_cache(room)
    assert isinstance(cache, SummaryCache)
    assert cache.nbytes == attention.slots(65_536) * 2 * 4 * 4
    assert not isinstance(attention.new_cache(room._replace(capacity=100)), SummaryCache)


def test_long_sequences_run_in_tiles() -> None:
    attention = Attention(Config(stride=40, summary=2), causal=True, shape=HeadShape(1, 1, 4))
    assert largest_product(attention, 3000) == 1000 * 50 * 2


def test_a_summary_is_no_longer_than_its_block() -> None:
    with pytest.raises(ConfigError, match=r"attention\.summary: got 9, expected 1 to the stride"):
        Config(stride=8, summary=9)
