"""Every attention variant, current and future, obeys these. New files are picked up by name."""

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from attention_equation import heads
from outrider.errors import ConfigError
from outrider.nn.attention import (
    AttentionBase,
    HeadShape,
    attention_kinds,
    build_attention,
    load_attention,
)
from outrider.nn.cache import SLACK, Cache, Room, Step
from small_tiles import small_tiles
from tiny import SMALL

CAUSAL = [kind for kind in attention_kinds() if load_attention(kind).Attention.causal_ok]
TWO_SIDED = [kind for kind in attention_kinds() if load_attention(kind).Attention.two_sided_ok]


WIDTH = 4


@pytest.fixture(autouse=True, scope="module")
def cut_up() -> Iterator[None]:
    """Short sequences are cut into tiles as long ones are; one dense pass would test little."""
    with small_tiles():
        yield


def build(
    kind: str, *, causal: bool, heads: int = 3, kv_heads: int | None = None, width: int = WIDTH
) -> AttentionBase:
    torch.manual_seed(0)
    shape = HeadShape(heads, kv_heads or heads, width)
    spec = {"kind": kind, **SMALL.get(kind, {})}
    return build_attention(spec, causal=causal, shape=shape).double().eval()


def new_cache(attention: AttentionBase, rows: int, capacity: int) -> Cache:
    shape = attention.shape
    cpu = torch.device("cpu")
    return attention.new_cache(
        Room(rows, capacity, shape.kv_heads, shape.width, torch.float64, cpu)
    )


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def same_gradients(fast: Tensor, slow: Tensor, inputs: list[Tensor]) -> None:
    pairs = (torch.autograd.grad(y, inputs, allow_unused=True) for y in (fast, slow))
    for a, b, x in zip(*pairs, inputs, strict=True):
        close(*(torch.zeros_like(x) if grad is None else grad for grad in (a, b)))


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("length", [1, 2, 7, 31, 64])
def test_fast_path_equals_reference_in_decoders(kind: str, length: int) -> None:
    inputs = heads(2, 3, length, 4)
    attention = build(kind, causal=True)
    fast, slow = attention(*inputs), attention.reference(*inputs)
    close(fast, slow)
    weight = torch.randn_like(slow)
    same_gradients((fast * weight).sum(), (slow * weight).sum(), [*inputs, *attention.parameters()])


@pytest.mark.parametrize("kind", TWO_SIDED)
@pytest.mark.parametrize("length", [1, 2, 7, 31, 64])
def test_fast_path_equals_reference_in_encoders(kind: str, length: int) -> None:
    inputs = heads(2, 3, length, 4)
    keep = torch.arange(length) < torch.tensor([[length], [max(1, length - 2)]])
    attention = build(kind, causal=False)
    fast = attention(*inputs, keep_BT=keep)
    slow = attention.reference(*inputs, keep_BT=keep)
    real = keep[:, None, :, None]
    close(fast * real, slow * real)
    weight = torch.randn_like(slow) * real
    same_gradients((fast * weight).sum(), (slow * weight).sum(), [*inputs, *attention.parameters()])


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("length", [7, 40])
def test_future_tokens_do_not_change_the_past(kind: str, length: int) -> None:
    q, k, v = (x.detach() for x in heads(2, 3, length, 4))
    attention = build(kind, causal=True)
    before = attention(q, k, v)
    q[:, :, 5:], k[:, :, 5:], v[:, :, 5:] = 9.0, 9.0, 9.0
    assert torch.equal(before[:, :, :5], attention(q, k, v)[:, :, :5])


@pytest.mark.parametrize("kind", TWO_SIDED)
def test_padding_is_invisible(kind: str) -> None:
    q, k, v = heads(2, 3, 40, 4)
    keep = (torch.arange(40) < 33).expand(2, -1)
    padded = build(kind, causal=False)(q, k, v, keep_BT=keep)[:, :, :33]
    close(padded, build(kind, causal=False)(q[:, :, :33], k[:, :, :33], v[:, :, :33]))


@pytest.mark.parametrize("kind", TWO_SIDED)
def test_a_row_in_a_batch_equals_the_row_alone(kind: str) -> None:
    q, k, v = heads(3, 3, 29, 4)
    lengths = [29, 4, 17]
    keep = torch.arange(29) < torch.tensor(lengths)[:, None]
    together = build(kind, causal=False)(q, k, v, keep_BT=keep)
    for row, n in enumerate(lengths):
        alone = build(kind, causal=False)(*(x[row : row + 1, :, :n] for x in (q, k, v)))
        close(together[row : row + 1, :, :n], alone)


@settings(max_examples=40, suppress_health_check=[HealthCheck.large_base_example])
@given(data=st.data(), kind=st.sampled_from(CAUSAL), seed=st.integers(0, 2**16))
def test_ragged_extends_and_rollbacks_equal_the_whole_pass(
    data: st.DataObject, kind: str, seed: int
) -> None:
    """Rows grow by blocks, each keeps what it likes of a block; every output equals one pass."""
    total, rows = 40, 3
    q, k, v = (x.detach() for x in heads(rows, 3, total + 8, 4, seed=seed))
    attention = build(kind, causal=True)
    whole = attention(q, k, v)
    cache = new_cache(attention, rows, total + 8)
    lengths = [0] * rows
    while max(lengths) < total:
        block = data.draw(st.integers(1, 8))
        step = Step(lengths, block, [block] * rows, torch.device("cpu"))
        index = torch.tensor(lengths)[:, None] + torch.arange(block)

        def take(x: Tensor, index: Tensor = index) -> Tensor:
            return torch.stack([x[row][:, index[row]] for row in range(rows)])

        with torch.no_grad():
            out = attention.extend(take(q), take(k), take(v), cache, step)
        close(out, take(whole))
        # Rows keep between nothing and the whole block; the rest is rolled back.
        lengths = [n + data.draw(st.integers(0 if any(lengths) else 1, block)) for n in lengths]


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("counts", [[200, 150, 3], [200, 200, 200]])
def test_a_long_ragged_prompt_then_single_tokens(kind: str, counts: list[int]) -> None:
    """The prompt is far longer than a ring cache; each row goes on from its own end."""
    q, k, v = (x.detach() for x in heads(3, 3, 260, 4))
    attention = build(kind, causal=True)
    whole = attention(q, k, v)
    cpu = torch.device("cpu")
    cache = new_cache(attention, 3, 260)
    with torch.no_grad():
        prompt = (x[:, :, :200] for x in (q, k, v))
        attention.extend(*prompt, cache, Step([0] * 3, 200, counts, cpu))
        for extra in range(5):
            at = torch.tensor(counts) + extra
            step = Step([n + extra for n in counts], 1, [1] * 3, cpu)
            token = [
                torch.stack([x[row, :, at[row]] for row in range(3)])[:, :, None] for x in (q, k, v)
            ]
            out = attention.extend(*token, cache, step)
            close(out[:, :, 0], torch.stack([whole[row, :, at[row]] for row in range(3)]))


@pytest.mark.parametrize("kind", CAUSAL)
def test_grouped_key_value_heads_equal_repeated_ones(kind: str) -> None:
    q, _, _ = heads(2, 4, 30, 4)
    k, v, _ = heads(2, 2, 30, 4, seed=1)
    attention = build(kind, causal=True, heads=4, kv_heads=2)
    repeated = (x.repeat_interleave(2, dim=1) for x in (k, v))
    close(attention(q, k, v), attention(q, *repeated))


@pytest.mark.parametrize("kind", CAUSAL)
def test_half_precision_stays_close(kind: str) -> None:
    # Rounded before, so that a kind that hashes finds the same buckets.
    q, k, v = (x.detach().bfloat16().float() for x in heads(2, 3, 40, 8))
    attention = build(kind, causal=True, width=8).float()
    half = copy.deepcopy(attention).bfloat16()(*(x.bfloat16() for x in (q, k, v)))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), attention(q, k, v), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", attention_kinds())
def test_declares_its_cost(kind: str) -> None:
    causal = kind in CAUSAL
    attention = build(kind, causal=causal)
    at = torch.arange(50)
    if attention.positional:
        seen = attention.heads_see(at[:, None], at[None]).expand(3, -1, -1)
        assert attention.cost(50).pairs == pytest.approx(int(seen.sum()) / 3, abs=1)
    assert 0 < attention.cost(50).pairs <= 50 * 50
    assert attention.cost(50).slots == attention.slots(50)


@pytest.mark.parametrize("kind", CAUSAL)
def test_a_cache_holds_what_it_declares(kind: str) -> None:
    """Bytes of the cache at two lengths grow as the declared number of tokens does."""
    attention = build(kind, causal=True)
    for capacity in (50, 5000):
        cache = new_cache(attention, 2, capacity)
        assert cache.nbytes <= 1.1 * attention.slots(capacity) * 2 * 3 * WIDTH * 2 * 8


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("pick", [[2, 0], [1, 1, 0, 2], [1]])
def test_rows_can_leave_and_be_copied(kind: str, pick: list[int]) -> None:
    """Rows of different lengths are reordered, dropped or copied; each goes on as before."""
    q, k, v = (x.detach() for x in heads(3, 3, 40, 4))
    attention, cpu = build(kind, causal=True), torch.device("cpu")
    whole = attention(q, k, v)
    counts = [30, 12, 21]
    cache = new_cache(attention, 3, 40)
    with torch.no_grad():
        prompt = (x[:, :, :30] for x in (q, k, v))
        attention.extend(*prompt, cache, Step([0] * 3, 30, counts, cpu))
        cache.select(torch.tensor(pick), 30)
        lengths = [counts[row] for row in pick]
        step = Step(lengths, 2, [2] * len(pick), cpu)
        token = [
            torch.stack([x[row, :, n : n + 2] for row, n in zip(pick, lengths, strict=True)])
            for x in (q, k, v)
        ]
        out = attention.extend(*token, cache, step)
    close(out, torch.stack([whole[r, :, n : n + 2] for r, n in zip(pick, lengths, strict=True)]))


@pytest.mark.parametrize("kind", attention_kinds())
def test_config_survives_pickling_and_compares_by_value(kind: str) -> None:
    attention = build(kind, causal=kind in CAUSAL)
    assert pickle.loads(pickle.dumps(attention.config)) == attention.config
    assert attention.key == build(kind, causal=kind in CAUSAL).key


@pytest.mark.parametrize("kind", sorted(set(attention_kinds()) - set(CAUSAL)))
def test_a_variant_that_cannot_decode_says_so(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"'{kind}' cannot stand in a decoder; use one of"):
        build(kind, causal=True)


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
def test_compiles(kind: str) -> None:
    torch.compiler.reset()  # compiled kinds share one `forward`, and a function has a limit
    q, k, v = (x.detach() for x in heads(2, 3, 20, 4))
    attention = build(kind, causal=True)
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    close(compiled(q, k, v), attention(q, k, v))


def test_slack_bounds_what_a_wrapping_cache_takes() -> None:
    assert SLACK >= 32, "a block of drafted tokens must fit"
