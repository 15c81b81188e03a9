"""Every attention variant, current and future, obeys these. New files are picked up by name."""

import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from attention_equation import heads
from outrider.errors import ConfigError
from outrider.nn.attention import (
    AttentionBase,
    attention_kinds,
    build_attention,
    load_attention,
)
from outrider.nn.cache import SLACK, LayerCache, Step

SMALL = {"sliding": {"window": 3}}
"""Options that make a variant's pattern visible on short test sequences."""

CAUSAL = [kind for kind in attention_kinds() if load_attention(kind).Attention.causal_ok]
TWO_SIDED = [kind for kind in attention_kinds() if load_attention(kind).Attention.two_sided_ok]


def build(kind: str, *, causal: bool) -> AttentionBase:
    return build_attention({"kind": kind, **SMALL.get(kind, {})}, causal=causal).eval()


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("length", [1, 2, 7, 31, 64])
def test_fast_path_equals_reference_in_decoders(kind: str, length: int) -> None:
    inputs = heads(2, 3, length, 4)
    attention = build(kind, causal=True)
    fast, slow = attention(*inputs), attention.reference(*inputs)
    close(fast, slow)
    weight = torch.randn_like(slow)
    fast_grads = torch.autograd.grad((fast * weight).sum(), inputs)
    for a, b in zip(fast_grads, torch.autograd.grad((slow * weight).sum(), inputs), strict=True):
        close(a, b)


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
    fast_grads = torch.autograd.grad((fast * weight).sum(), inputs)
    for a, b in zip(fast_grads, torch.autograd.grad((slow * weight).sum(), inputs), strict=True):
        close(a, b)


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
    q, k, v = heads(3, 2, 29, 4)
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
    q, k, v = (x.detach() for x in heads(rows, 2, total + 8, 4, seed=seed))
    attention = build(kind, causal=True)
    whole = attention(q, k, v)
    cache = LayerCache(
        rows, 2, attention.slots(total + 8), 4, dtype=torch.float64, device=torch.device("cpu")
    )
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
    q, k, v = (x.detach() for x in heads(3, 2, 260, 4))
    attention = build(kind, causal=True)
    whole = attention(q, k, v)
    cpu = torch.device("cpu")
    cache = LayerCache(3, 2, attention.slots(260), 4, dtype=torch.float64, device=cpu)
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
    attention = build(kind, causal=True)
    repeated = (x.repeat_interleave(2, dim=1) for x in (k, v))
    close(attention(q, k, v), attention(q, *repeated))


@pytest.mark.parametrize("kind", CAUSAL)
def test_half_precision_stays_close(kind: str) -> None:
    q, k, v = (x.detach().float() for x in heads(2, 2, 40, 8))
    attention = build(kind, causal=True)
    half = attention(*(x.bfloat16() for x in (q, k, v)))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), attention(q, k, v), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", attention_kinds())
def test_declares_its_cost(kind: str) -> None:
    causal = kind in CAUSAL
    attention = build(kind, causal=causal)
    at = torch.arange(50)
    assert attention.cost(50).pairs == int(attention.sees(at[:, None], at[None]).sum())
    assert attention.cost(50).slots == attention.slots(50)


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
        build_attention({"kind": "slidng"}, causal=True, key="x")


def test_a_wrong_option_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"a\.windw: unknown option of 'sliding' \(did you mean 'window"
    ):
        build_attention({"kind": "sliding", "windw": 3}, causal=True, key="a")


@pytest.mark.parametrize("value", ["3", 2.5, True, None])
def test_a_wrong_option_type_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"attention\.window: got .*, expected int"):
        build_attention({"kind": "sliding", "window": value}, causal=True)


@pytest.mark.parametrize("kind", CAUSAL)
def test_compiles(kind: str) -> None:
    q, k, v = (x.detach() for x in heads(2, 2, 20, 4))
    attention = build(kind, causal=True)
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    close(compiled(q, k, v), attention(q, k, v))


def test_slack_bounds_what_a_wrapping_cache_takes() -> None:
    assert SLACK >= 32, "a block of drafted tokens must fit"
