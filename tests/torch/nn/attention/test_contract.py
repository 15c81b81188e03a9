"""Contract of every attention variant. New files are found by name.

The tests use the `device` fixture: `pytest -m gpu` runs them on a GPU.
"""

import copy
import pickle
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.inspect.attention_trace import computed_pairs
from outrider.torch.nn.attention import (
    AttentionBase,
    HeadShape,
    attention_kinds,
    build_attention,
    kinds_with,
)
from outrider.torch.nn.cache import SLACK, Cache, CacheSpec, LayerCache, Step
from outrider.torch.nn.kernel import flex
from outrider.torch.nn.kernel.dense import attend
from tests.helpers.attention_equation import heads
from tests.helpers.small_tiles import small_tiles
from tests.helpers.tiny import SMALL

CAUSAL, TWO_SIDED = kinds_with("causal_ok"), kinds_with("two_sided_ok")
WIDTH = 4


@pytest.fixture(autouse=True, scope="module")
def cut_up() -> Iterator[None]:
    """Use tiles for short sequences."""
    with small_tiles():
        yield


def build(
    kind: str,
    device: torch.device,
    *,
    causal: bool,
    heads: int = 3,
    kv_heads: int | None = None,
    width: int = WIDTH,
) -> AttentionBase:
    torch.manual_seed(0)
    shape = HeadShape(heads, kv_heads or heads, width)
    spec = {"kind": kind, **SMALL.get(kind, {})}
    return build_attention(spec, causal=causal, shape=shape).double().to(device).eval()


def new_cache(attention: AttentionBase, rows: int, capacity: int, device: torch.device) -> Cache:
    shape = attention.shape
    return attention.new_cache(
        CacheSpec(rows, capacity, shape.kv_heads, shape.width, torch.float64, device)
    )


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def same_gradients(fast: Tensor, slow: Tensor, inputs: list[Tensor]) -> None:
    pairs = (torch.autograd.grad(y, inputs, allow_unused=True) for y in (fast, slow))
    for a, b, x in zip(*pairs, inputs, strict=True):
        close(*(torch.zeros_like(x) if grad is None else grad for grad in (a, b)))


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("length", [1, 2, 7, 31, 64])
def test_fast_path_equals_reference_in_decoders(
    kind: str, length: int, device: torch.device
) -> None:
    inputs = heads(2, 3, length, 4, device=device)
    attention = build(kind, device, causal=True)
    fast, slow = attention(*inputs), attention.reference(*inputs)
    close(fast, slow)
    weight = torch.randn_like(slow)
    same_gradients((fast * weight).sum(), (slow * weight).sum(), [*inputs, *attention.parameters()])


@pytest.mark.parametrize("kind", TWO_SIDED)
@pytest.mark.parametrize("length", [1, 2, 7, 31, 64])
def test_fast_path_equals_reference_in_encoders(
    kind: str, length: int, device: torch.device
) -> None:
    inputs = heads(2, 3, length, 4, device=device)
    keep = (torch.arange(length) < torch.tensor([[length], [max(1, length - 2)]])).to(device)
    attention = build(kind, device, causal=False)
    fast = attention(*inputs, keep_BT=keep)
    slow = attention.reference(*inputs, keep_BT=keep)
    real = keep[:, None, :, None]
    close(fast * real, slow * real)
    weight = torch.randn_like(slow) * real
    same_gradients((fast * weight).sum(), (slow * weight).sum(), [*inputs, *attention.parameters()])


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("length", [7, 40])
def test_future_tokens_do_not_change_the_past(kind: str, length: int, device: torch.device) -> None:
    q, k, v = (x.detach() for x in heads(2, 3, length, 4, device=device))
    attention = build(kind, device, causal=True)
    before = attention(q, k, v)
    q[:, :, 5:], k[:, :, 5:], v[:, :, 5:] = 9.0, 9.0, 9.0
    assert torch.equal(before[:, :, :5], attention(q, k, v)[:, :, :5])


@pytest.mark.parametrize("kind", TWO_SIDED)
def test_padding_has_no_effect(kind: str, device: torch.device) -> None:
    q, k, v = heads(2, 3, 40, 4, device=device)
    keep = (torch.arange(40, device=device) < 33).expand(2, -1)
    padded = build(kind, device, causal=False)(q, k, v, keep_BT=keep)[:, :, :33]
    close(padded, build(kind, device, causal=False)(q[:, :, :33], k[:, :, :33], v[:, :, :33]))


@pytest.mark.parametrize("kind", TWO_SIDED)
def test_a_row_in_a_batch_equals_the_row_alone(kind: str, device: torch.device) -> None:
    q, k, v = heads(3, 3, 29, 4, device=device)
    lengths = [29, 4, 17]
    keep = (torch.arange(29) < torch.tensor(lengths)[:, None]).to(device)
    together = build(kind, device, causal=False)(q, k, v, keep_BT=keep)
    for row, n in enumerate(lengths):
        alone = build(kind, device, causal=False)(*(x[row : row + 1, :, :n] for x in (q, k, v)))
        close(together[row : row + 1, :, :n], alone)


@pytest.mark.parametrize("kind", CAUSAL)
@settings(max_examples=6, suppress_health_check=[HealthCheck.large_base_example])
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_ragged_extends_and_rollbacks_equal_the_whole_pass(
    data: st.DataObject, kind: str, device: torch.device, seed: int
) -> None:
    """Rows grow by blocks and keep part of each; every output equals one pass."""
    total, rows = 40, 3
    q, k, v = (x.detach() for x in heads(rows, 3, total + 8, 4, seed=seed, device=device))
    attention = build(kind, device, causal=True)
    whole = attention(q, k, v)
    cache = new_cache(attention, rows, total + 8, device)
    lengths = [0] * rows
    while max(lengths) < total:
        block = data.draw(st.integers(1, 8))
        step = Step(lengths, block, [block] * rows, device)
        index = (torch.tensor(lengths)[:, None] + torch.arange(block)).to(device)

        def take(x: Tensor, index: Tensor = index) -> Tensor:
            return torch.stack([x[row][:, index[row]] for row in range(rows)])

        with torch.no_grad():
            out = attention.extend(take(q), take(k), take(v), cache, step)
        close(out, take(whole))
        # Rows keep any number of tokens of the block; the others are rolled back.
        lengths = [n + data.draw(st.integers(0 if any(lengths) else 1, block)) for n in lengths]


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("counts", [[200, 150, 3], [200, 200, 200]])
def test_a_long_ragged_prompt_then_single_tokens(
    kind: str, counts: list[int], device: torch.device
) -> None:
    """The prompt is much longer than a ring cache; each row continues at its own end."""
    q, k, v = (x.detach() for x in heads(3, 3, 260, 4, device=device))
    attention = build(kind, device, causal=True)
    whole = attention(q, k, v)
    cache = new_cache(attention, 3, 260, device)
    with torch.no_grad():
        prompt = (x[:, :, :200] for x in (q, k, v))
        attention.extend(*prompt, cache, Step([0] * 3, 200, counts, device))
        for extra in range(5):
            at = torch.tensor(counts) + extra
            step = Step([n + extra for n in counts], 1, [1] * 3, device)
            token = [
                torch.stack([x[row, :, at[row]] for row in range(3)])[:, :, None] for x in (q, k, v)
            ]
            out = attention.extend(*token, cache, step)
            close(out[:, :, 0], torch.stack([whole[row, :, at[row]] for row in range(3)]))


@pytest.mark.parametrize("kind", CAUSAL)
def test_grouped_key_value_heads_equal_repeated_ones(kind: str, device: torch.device) -> None:
    q, _, _ = heads(2, 4, 30, 4, device=device)
    k, v, _ = heads(2, 2, 30, 4, seed=1, device=device)
    attention = build(kind, device, causal=True, heads=4, kv_heads=2)
    repeated = (x.repeat_interleave(2, dim=1) for x in (k, v))
    close(attention(q, k, v), attention(q, *repeated))


@pytest.mark.parametrize("kind", CAUSAL)
def test_half_precision_stays_close(kind: str, device: torch.device) -> None:
    # Round first, so that hashing kinds get the same buckets.
    q, k, v = (x.detach().bfloat16().float() for x in heads(2, 3, 40, 8, device=device))
    attention = build(kind, device, causal=True, width=8).float()
    half = copy.deepcopy(attention).bfloat16()(*(x.bfloat16() for x in (q, k, v)))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), attention(q, k, v), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", attention_kinds())
def test_declares_its_cost(kind: str, device: torch.device) -> None:
    causal = kind in CAUSAL
    attention = build(kind, device, causal=causal)
    at = torch.arange(50, device=device)
    if attention.positional and attention.by_pairs:
        seen = attention.heads_see(at[:, None], at[None]).expand(3, -1, -1)
        assert attention.cost(50).pairs == pytest.approx(int(seen.sum()) / 3, abs=1)
    assert 0 < attention.cost(50).pairs <= 50 * 50
    assert attention.cost(50).slots == attention.slots(50)


@pytest.mark.parametrize("kind", CAUSAL)
def test_a_cache_holds_what_it_declares(kind: str, device: torch.device) -> None:
    """The bytes of the cache grow with length as the declared number of tokens does."""
    attention = build(kind, device, causal=True)
    for capacity in (50, 5000):
        cache = new_cache(attention, 2, capacity, device)
        assert cache.nbytes <= 1.1 * attention.slots(capacity) * 2 * 3 * WIDTH * 2 * 8


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("pick", [[2, 0], [1, 1, 0, 2], [1]])
def test_rows_can_be_dropped_and_copied(kind: str, pick: list[int], device: torch.device) -> None:
    """Rows of different lengths are reordered, dropped or copied, and then continue correctly."""
    q, k, v = (x.detach() for x in heads(3, 3, 40, 4, device=device))
    attention = build(kind, device, causal=True)
    whole = attention(q, k, v)
    counts = [30, 12, 21]
    cache = new_cache(attention, 3, 40, device)
    with torch.no_grad():
        prompt = (x[:, :, :30] for x in (q, k, v))
        attention.extend(*prompt, cache, Step([0] * 3, 30, counts, device))
        cache.select(torch.tensor(pick, device=device), 30)
        lengths = [counts[row] for row in pick]
        step = Step(lengths, 2, [2] * len(pick), device)
        token = [
            torch.stack([x[row, :, n : n + 2] for row, n in zip(pick, lengths, strict=True)])
            for x in (q, k, v)
        ]
        out = attention.extend(*token, cache, step)
    close(out, torch.stack([whole[r, :, n : n + 2] for r, n in zip(pick, lengths, strict=True)]))


@pytest.mark.parametrize("kind", attention_kinds())
def test_config_survives_pickling_and_compares_by_value(kind: str, device: torch.device) -> None:
    attention = build(kind, device, causal=kind in CAUSAL)
    assert pickle.loads(pickle.dumps(attention.config)) == attention.config
    assert attention.key == build(kind, device, causal=kind in CAUSAL).key


@pytest.mark.parametrize("kind", sorted(set(attention_kinds()) - set(CAUSAL)))
def test_a_variant_without_decoding_raises_an_error(kind: str, device: torch.device) -> None:
    with pytest.raises(ConfigError, match=f"'{kind}' cannot be used in a decoder; use one of"):
        build(kind, device, causal=True)


def test_a_wrong_kind_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"x\.kind: unknown 'slidng' \(did you mean 'sliding'\?\)"
    ):
        build_attention({"kind": "slidng"}, causal=True, shape=HeadShape(1, 1, 1), key="x")


def test_a_wrong_option_names_the_nearest() -> None:
    spec = {"kind": "sliding", "windw": 3}
    with pytest.raises(
        ConfigError, match=r"a\.windw: unknown option of 'sliding' \(did you mean 'window"
    ):
        build_attention(spec, causal=True, shape=HeadShape(1, 1, 1), key="a")


@pytest.mark.parametrize("value", ["3", 2.5, True, None])
def test_a_wrong_option_type_is_refused(value: object) -> None:
    spec = {"kind": "sliding", "window": value}
    with pytest.raises(ConfigError, match=r"attention\.window: got .*, expected a whole number"):
        build_attention(spec, causal=True, shape=HeadShape(1, 1, 1))


def test_a_wrong_value_names_the_key_as_typed() -> None:
    spec = {"kind": "mixed", "parts": [{"heads": 2, "kind": "sliding", "window": 0}]}
    with pytest.raises(ConfigError, match=r"^decoder_attention\.parts\[0\]\.window: got 0"):
        build_attention(spec, causal=True, shape=HeadShape(2, 2, 4), key="decoder_attention")
    spec = {"kind": "local", "block": 0}
    with pytest.raises(ConfigError, match=r"^encoder_attention\.block: got 0"):
        build_attention(spec, causal=False, shape=HeadShape(1, 1, 4), key="encoder_attention")


@pytest.mark.parametrize("kind", CAUSAL)
def test_compiles(kind: str, device: torch.device) -> None:
    torch.compiler.reset()  # kinds share `forward`; recompilations are limited
    q, k, v = (x.detach() for x in heads(2, 3, 20, 4, device=device))
    attention = build(kind, device, causal=True)
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    close(compiled(q, k, v), attention(q, k, v))


SIDES = [(kind, True) for kind in CAUSAL] + [(kind, False) for kind in TWO_SIDED]
SHORT, LONG = 64, 1 << 14


def all_pairs(length: int, *, causal: bool) -> int:
    return length * (length + 1) // 2 if causal else length**2


@pytest.mark.parametrize(("kind", "causal"), SIDES)
def test_the_fast_path_runs(kind: str, causal: bool) -> None:
    """A sparse pattern needs few products: one dense pass fails the test.

    Checked on a CPU; on a GPU other kernels compute the same tiles.
    """
    attention = build(kind, torch.device("cpu"), causal=causal, heads=4)
    most = all_pairs(SHORT, causal=causal)
    if attention.cost(LONG).pairs >= 0.75 * all_pairs(LONG, causal=causal):
        return  # nearly all pairs are visible, as for full and causal
    if not attention.by_pairs:
        return  # `computed_pairs` does not apply; a separate test covers it
    if type(attention).run is AttentionBase.run:
        return  # `run` is the reference
    assert attention.cost(SHORT).pairs < 0.75 * most, (
        f"{SHORT} tokens nearly all see each other: give {kind!r} smaller options in "
        "tests/helpers/tiny.py:SMALL, or its pattern is not tested"
    )
    computed = computed_pairs(attention, SHORT)
    assert computed is not None, "no product of queries and keys was seen; use the kernels of nn"
    at = torch.arange(SHORT)
    seen = attention.heads_see(at[:, None], at[None]).expand(4, -1, -1)
    for head, pairs in enumerate(computed.sum((1, 2)).tolist()):
        sparse = not attention.positional or int(seen[head].sum()) < 0.75 * most
        assert not sparse or pairs < most, (
            f"head {head} took one dense pass of {SHORT} tokens; the length up to which {kind!r} "
            "does so is to be called DENSE_UP_TO, which tests/helpers/small_tiles.py sets to 0"
        )
    if attention.positional:
        assert not (seen & ~computed).any(), "pairs that are seen were not computed"


@pytest.mark.parametrize(("kind", "causal"), SIDES)
def test_tensors_are_created_on_the_device_of_the_inputs(kind: str, causal: bool) -> None:
    """A tensor created without a device is on `meta` here, as it would be on the CPU, not a GPU."""
    attention = build(kind, torch.device("cpu"), causal=causal)
    q, k, v = heads(2, 3, 40, 4)
    keep = None if causal else torch.arange(40) < torch.tensor([[40], [33]])

    def passes() -> list[Tensor]:
        out, slow = (way(q, k, v, keep_BT=keep) for way in (attention, attention.reference))
        grads = torch.autograd.grad(out.sum() + slow.sum(), (q, v))
        return [out, slow, *grads, *(extend_twice(attention, q, k, v) if causal else [])]

    at_home = passes()
    with torch.device("meta"):
        abroad = passes()
    assert all(map(torch.equal, at_home, abroad))


@torch.no_grad()
def extend_twice(attention: AttentionBase, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    cache = new_cache(attention, 2, 40, q.device)
    prompt, more = ([x[:, :, part] for x in (q, k, v)] for part in (slice(9), slice(9, 12)))
    return [
        attention.extend(*prompt, cache, Step([0, 0], 9, [9, 4], q.device)),
        attention.extend(*more, cache, Step([9, 4], 3, [3, 3], q.device)),
    ]


@pytest.mark.parametrize(("kind", "causal"), SIDES)
def test_sees_accepts_ranges_of_positions(kind: str, causal: bool) -> None:
    """FlexAttention's blocks are found with ranges as positions (`nn/kernel/flex.py`)."""
    attention = build(kind, torch.device("cpu"), causal=causal)
    if not attention.positional or not attention.heads_alike or not attention.by_pairs:
        return
    if attention.cost(LONG).pairs >= 0.75 * all_pairs(LONG, causal=causal):
        return  # no block can be skipped
    first = torch.arange(3) * flex.BLOCK
    queries, keys = (flex._Range(x, x + flex.BLOCK - 1) for x in (first[:, None], first[None]))
    try:
        answer = attention.sees(cast(Any, queries), cast(Any, keys))
    except (AttributeError, TypeError) as error:
        pytest.fail(
            f"`sees` of {kind!r} uses an operation that ranges do not have ({error}); see `_Range` "
            "in nn/kernel/flex.py, or a GPU asks about all blocks pair by pair"
        )
    assert isinstance(answer, flex._Truth)


@pytest.mark.parametrize("kind", kinds_with("halting_ok"))
def test_halting_kinds_support_single_queries(kind: str, device: torch.device) -> None:
    """`halting_ok`: `sees` is the complete pattern, and the cache is a `LayerCache`."""
    causal = kind in CAUSAL
    attention = build(kind, device, causal=causal)
    assert attention.positional
    assert attention.heads_alike
    q, k, v = heads(2, 3, 40, 4, device=device)
    at, some = torch.arange(40, device=device), torch.tensor([3, 17, 30], device=device)
    alone = attend(q[:, :, some], k, v, keep=attention.sees(some[:, None], at[None]))
    close(alone, attention(q, k, v)[:, :, some])
    if causal:
        assert isinstance(new_cache(attention, 2, 40, device), LayerCache)


@pytest.mark.parametrize("kind", kinds_with("skipping_ok"))
def test_skipping_kinds_support_packed_tokens(kind: str, device: torch.device) -> None:
    """`skipping_ok`: the pattern does not change when tokens are packed."""
    attention = build(kind, device, causal=False)
    at = torch.arange(40, device=device)
    some = at[torch.rand(40, generator=torch.Generator().manual_seed(0)) < 0.5]
    packed = torch.arange(len(some), device=device)
    seen, moved = (attention.sees(x[:, None], x[None]) for x in (some, packed))
    assert torch.equal(seen, moved)


def test_slack_bounds_the_block_of_a_ring_cache() -> None:
    assert SLACK >= 32, "a block of drafted tokens must fit"
