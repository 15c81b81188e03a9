"""Hashed attention equals its equation in loops; cached decoding; refused options."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.errors import ConfigError
from outrider.torch.models import LanguageModel
from outrider.torch.nn.attention import HeadShape, build_attention, lsh
from outrider.torch.nn.attention.lsh import Attention, Config
from outrider.torch.nn.cache import CacheSpec, Step
from outrider.torch.nn.kernel import bucketed
from outrider.torch.nn.kernel.hashing import causal_layout, chunked_layout
from tests.helpers import tiny
from tests.helpers.attention_equation import assert_same_with_gradient, equation, heads

CPU = torch.device("cpu")
ON_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def build(*, causal: bool = True, heads: int = 1, width: int = 4, **options: object) -> Attention:
    torch.manual_seed(0)
    shape = HeadShape(heads, heads, width)
    attention = build_attention({"kind": "lsh", **options}, causal=causal, shape=shape)
    assert isinstance(attention, Attention)
    return attention.double().eval()


def bucket(x: Tensor, rotation: Tensor) -> int:
    turned = x @ rotation
    return int(torch.cat([turned, -turned]).argmax())


def found_by_causal(buckets: list[int], i: int, m: int) -> set[int]:
    mine = [j for j in range(i + 1) if buckets[j] == buckets[i]]
    return set(mine[-m:])


def found_by_chunks(buckets: list[int], i: int, m: int) -> set[int]:
    order = sorted(range(len(buckets)), key=lambda j: (buckets[j], j))
    chunk = {j: place // m for place, j in enumerate(order)}
    near = [j for j in order if chunk[j] in (chunk[i], chunk[i] - 1)]
    return {j for j in near if buckets[j] == buckets[i]}


def loops(attention: Attention, q: Tensor, v: Tensor, *, chunked: bool) -> Tensor:
    """One head and row by the definition: hash, find keys, drop the own key, attend."""
    k = torch.stack([x / x.square().sum().sqrt() for x in q])
    found = found_by_chunks if chunked else found_by_causal
    seen: list[set[int]] = [set() for _ in q]
    for rotation in attention.rotation[:, 0]:
        buckets = [bucket(x, rotation) for x in q.detach()]
        for i in range(len(q)):
            seen[i] |= found(buckets, i, attention.config.chunk)
    seen = [others - {i} or {i} for i, others in enumerate(seen)]
    return equation(q, k, v, lambda i, j: j in seen[i])


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    length=st.integers(1, 30),
    chunk=st.integers(2, 5),
    rounds=st.integers(1, 3),
    buckets=st.sampled_from([2, 4, 6]),
    causal=st.booleans(),
    padding=st.integers(0, 5),
    at_once=st.sampled_from([1, 100, 1 << 18]),
    seed=st.integers(0, 2**16),
)
@pytest.mark.parametrize("blocks", [True, False])
def test_matches_equation_and_its_gradient(
    blocks: bool,
    length: int,
    chunk: int,
    rounds: int,
    buckets: int,
    causal: bool,
    padding: int,
    at_once: int,
    seed: int,
) -> None:
    attention = build(causal=causal, chunk=chunk, rounds=rounds, buckets=buckets)
    q, k, v = heads(1, 1, length + padding, 4, seed=seed)
    keep = (torch.arange(length + padding) < length)[None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lsh, "DENSE_UP_TO", 0 if blocks else 1000)
        patch.setattr(bucketed, "AT_ONCE", at_once)
        fast = attention(q, k, v, keep_BT=keep)[0, 0, :length]
    slow = loops(attention, q[0, 0, :length], v[0, 0, :length], chunked=not causal)
    assert_same_with_gradient(fast, slow, (q, v))


@pytest.mark.parametrize("at_once", [1000, 5000, 1 << 20])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("chunk", "buckets"), [(16, 8), (21, 8), (40, 32)])
def test_the_number_of_scores_at_once_does_not_change_the_gradient(
    causal: bool, chunk: int, buckets: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    spec = {"kind": "lsh", "chunk": chunk, "rounds": 3, "buckets": buckets}
    attention = build_attention(spec, causal=causal, shape=HeadShape(6, 2, 4)).double().eval()
    qkv, _, _ = heads(2, 200, 10 * 4)
    # As in a layer: views of one product, and values shared by three heads.
    q, k, v = qkv.unflatten(-1, (10, 4)).transpose(1, 2).split([6, 2, 2], dim=1)
    monkeypatch.setattr(bucketed, "AT_ONCE", at_once)
    monkeypatch.setattr(lsh, "DENSE_UP_TO", 0)
    assert_same_with_gradient(attention(q, k, v), attention.reference(q, k, v), (qkv,))


@pytest.mark.parametrize("at_once", [1000, 1 << 18])
def test_future_tokens_have_no_effect_in_blocks(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucketed, "AT_ONCE", at_once)
    attention = build(heads=2, width=16, chunk=16, rounds=3, buckets=8).float()
    q, k, v = (x.detach().float() for x in heads(2, 2, 700, 16))
    before = attention(q, k, v)
    q[:, :, 400:] = q[:, :, 400:].flip(2) * 3
    v[:, :, 400:] = 7.0
    assert torch.equal(before[:, :, :400], attention(q, k, v)[:, :, :400])


@pytest.mark.parametrize("causal", [True, False])
def test_gradient_drops_the_same_weights(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketed, "AT_ONCE", 100)
    torch.manual_seed(0)
    spec = {"kind": "lsh", "chunk": 3, "rounds": 2, "buckets": 4}
    attention = build_attention(spec, causal=causal, dropout=0.4, shape=HeadShape(2, 1, 4))
    attention = attention.double().train()
    q, _, _ = heads(1, 2, 30, 4)
    v, _, _ = heads(1, 1, 30, 4, seed=1)

    def drawn_alike(q: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(7)
        return attention(q, v, v)

    assert torch.autograd.gradcheck(drawn_alike, (q, v), fast_mode=True)
    assert not torch.equal(attention(q, v, v), attention(q, v, v))


def test_dropout_keeps_the_mean() -> None:
    attention = build(chunk=4, rounds=2, buckets=2).train()
    attention.dropout = 0.3
    q, k, v = (x.detach() for x in heads(1, 1, 40, 4))
    q, k, v = (x.expand(500, 1, -1, -1) for x in (q, k, v))
    mean = attention(q, k, v).mean(0)
    whole = attention.eval()(q[:1], k[:1], v[:1])[0]
    torch.testing.assert_close(mean, whole, rtol=0, atol=0.2)


def test_the_chunks_of_the_paper_are_not_causal() -> None:
    """`chunked` is refused in decoders: a later token changes which past keys are visible."""

    def seen_by_the_fourth(buckets: list[int]) -> list[int]:
        layout = chunked_layout(torch.tensor(buckets).view(1, 1, 1, -1), 2, 2)
        code = layout.code_RBHT[0, 0, 0]
        return layout.found(code[3], code).nonzero().flatten().tolist()

    assert seen_by_the_fourth([1, 1, 1, 1]) == [0, 1, 2, 3]
    assert seen_by_the_fourth([1, 1, 1, 1, 0]) == [1, 2, 3]


@pytest.mark.parametrize("window", [3, 1 << 16])
def test_codes_of_any_options_are_exact(window: int) -> None:
    bucket_T = torch.tensor([4094, 4095, 4094, 4095, 4095])
    layout = causal_layout(bucket_T.view(1, 1, 1, -1), 4096, window)
    code_T = layout.code_RBHT.flatten()
    found = layout.found(code_T[:, None], code_T[None])
    at = torch.arange(5)
    assert torch.equal(found, (bucket_T[:, None] == bucket_T) & (at[:, None] >= at))


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor created, also inside custom operators."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "outrider":
            with self:
                return func.redispatch(ON_CPU, *args, **(kwargs or {}))
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, tuple | list) else [made]:
            if isinstance(x, Tensor):
                self.nbytes = max(self.nbytes, x.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("rounds", [1, 5])
def test_no_tensor_is_larger_than_the_inputs_and_no_round_saves_outputs(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucketed, "AT_ONCE", 1 << 13)
    attention = build(heads=3, width=8, chunk=64, rounds=rounds, buckets=8)
    q, k, v = heads(1, 3, 700, 8)
    kept = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x.untyped_storage().nbytes())
        return x

    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            out = attention(q, k, v)
        torch.autograd.grad(out.sum(), (q, v))
    assert 0 < largest.nbytes <= q.nbytes
    numbers = 3 * 700 * (8 + rounds * 2 * 4)  # length, and slot and code of every round
    assert 0 < sum(kept) <= 3 * q.nbytes + numbers + 8


def test_a_token_that_sees_only_itself_gives_its_query_no_gradient() -> None:
    attention = build(width=16, chunk=3, rounds=2, buckets=4).bfloat16()
    q, k, v = (x.detach().bfloat16().requires_grad_() for x in heads(1, 1, 60, 16))
    dq, dv = torch.autograd.grad(attention(q, k, v)[:, :, 0].sum(), (q, v))
    assert not dq.any()
    assert torch.equal(dv[:, :, 0], torch.ones_like(dv[:, :, 0]))


def test_more_rounds_find_more_near_keys() -> None:
    q, noise, _ = (x.detach() for x in heads(1, 1, 256, 16))
    q[:, :, 128:] = q[:, :, :128] + 0.5 * noise[:, :, 128:]
    shares = []
    for rounds in (1, 2, 4, 8):
        attention = build(width=16, rounds=rounds, buckets=16, chunk=256)
        bucket_RT = lsh.hash_buckets(q, attention.rotation)[:, 0, 0]
        together = (bucket_RT[:, 128:] == bucket_RT[:, :128]).any(0)
        shares.append(float(together.double().mean()))
    assert shares == sorted(shares)
    assert shares[0] < 0.8 < shares[-1]


def test_decoding_reads_chains_instead_of_the_whole_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = build(heads=2, chunk=5, rounds=3, buckets=4)
    q, k, v = (x.detach() for x in heads(1, 2, 401, 4))
    cache = attention.new_cache(CacheSpec(1, 401, 2, 4, torch.float64, CPU))
    read = []
    real_attend = lsh.attend

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        read.append(k.shape[2])
        return real_attend(q, k, v, **options)

    with torch.no_grad():
        attention.extend(*(x[:, :, :400] for x in (q, k, v)), cache, Step([0], 400, [400], CPU))
        monkeypatch.setattr(lsh, "attend", attend)
        out = attention.extend(*(x[:, :, 400:] for x in (q, k, v)), cache, Step([400], 1, [1], CPU))
    assert read == [3 * 4 + 1]
    torch.testing.assert_close(out, attention(q, k, v)[:, :, 400:])


def test_values_of_grouped_heads_are_cached_and_read() -> None:
    torch.manual_seed(0)
    spec = {"kind": "lsh", "chunk": 4, "rounds": 2, "buckets": 4}
    attention = build_attention(spec, causal=True, shape=HeadShape(4, 2, 4)).double().eval()
    q, _, _ = (x.detach() for x in heads(2, 4, 50, 4))
    k, v, _ = (x.detach() for x in heads(2, 2, 50, 4, seed=1))
    cache = attention.new_cache(CacheSpec(2, 50, 2, 4, torch.float64, CPU))
    whole = attention(q, k, v)
    with torch.no_grad():
        for i in range(50):
            token = (x[:, :, i : i + 1] for x in (q, k, v))
            out = attention.extend(*token, cache, Step([i, i], 1, [1, 1], CPU))
            torch.testing.assert_close(out, whole[:, :, i : i + 1])


def test_half_precision_hashes_with_the_same_rotations() -> None:
    q, k, v = (x.detach().bfloat16() for x in heads(2, 3, 90, 8))
    attention = build(heads=3, width=8, chunk=8, rounds=2, buckets=8).float()
    half = copy.deepcopy(attention).bfloat16()(q, k, v)
    assert half.dtype == torch.bfloat16
    whole = attention(q.float(), k.float(), v.float())
    torch.testing.assert_close(half.float(), whole, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_blocks_compile(dropout: float) -> None:
    torch.compiler.reset()
    q, k, v = heads(2, 3, 60, 4)
    attention = build(heads=3, chunk=3, rounds=2, buckets=4).train()
    attention.dropout = dropout
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    made = []
    for way in (compiled, attention):
        torch.manual_seed(1)
        out = way(q, k, v)
        made.append((out, *torch.autograd.grad(out.square().sum(), (q, v))))
    torch.testing.assert_close(*made)


def test_new_rotations_are_drawn_in_training_only() -> None:
    q, k, v = (x.detach() for x in heads(1, 1, 40, 4))
    attention = build(chunk=3, rounds=1, buckets=4, redraw=True)
    assert torch.equal(attention(q, k, v), attention(q, k, v))
    attention.train()
    assert not torch.equal(attention(q, k, v), attention(q, k, v))


def language_model(**changes: object) -> LanguageModel:
    attention = {"kind": "lsh", "chunk": 3, "rounds": 2, "buckets": 4}
    return tiny.language_model(attention=attention, dtype=torch.float64, **changes)


def test_layers_have_separate_rotations_that_files_store(tmp_path) -> None:
    model = language_model()
    first, second = (block.attention.attention.rotation for block in model.decoder.blocks)
    assert not torch.equal(first, second)
    model.save_pretrained(tmp_path)
    torch.manual_seed(99)
    again = LanguageModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    tokens = torch.randint(3, tiny.VOCABULARY, (2, 50))
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, again(tokens).logits)


def test_decoding_equals_one_pass() -> None:
    model = language_model(seed=3)
    tokens = torch.randint(3, tiny.VOCABULARY, (3, 70))
    with torch.no_grad():
        whole = model(tokens).logits
        state = model.open(3, capacity=70)
        parts = [model.extend(part, state) for part in tokens.split([30, 1, 7, 1, 31], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "sorted"}, r"attention\.form: unknown 'sorted'; expected one of"),
        ({"rounds": 0}, r"attention\.rounds: got 0, expected 1 to 64"),
        ({"buckets": 7}, r"attention\.buckets: got 7, expected an even number"),
        ({"chunk": 1}, r"attention\.chunk: got 1, expected 2 to"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**options)


def test_chunks_are_refused_in_decoders() -> None:
    with pytest.raises(ConfigError, match=r"attention\.form: 'chunked' makes .* form: causal"):
        build(form="chunked")
