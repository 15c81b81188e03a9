"""The native core in float32 equals the torch backend up to rounding: logits, drafts, slots."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.decoding import DecodeConfig, Request, decode
from tests.helpers import native_tiny
from tests.helpers.native_tiny import DRAFTERS, KINDS, SEQ2SEQ
from tests.helpers.tensor_calls import TensorCalls, native_calls, torch_calls

pytest.importorskip("outrider_native", reason="outrider-native is not installed")

LENGTHS = [5, 1, 9]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def both(model: Any, **parts: Any) -> tuple[TensorCalls, TensorCalls]:
    return native_calls(model, dtype="float32", threads=1, **parts), torch_calls(model, **parts)


def ids(backend: Any, *shape: int) -> Tensor:
    return torch.randint(backend.vocab_size, shape)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_logits_equal_those_of_torch(kind) -> None:
    """Ragged prompts, blocks, single tokens; rollback; rows dropped, reordered and copied."""
    model = native_tiny.build(kind)
    backends = both(model)
    source = native_tiny.rows(model, LENGTHS)
    states = [backend.encode(source, capacity=30) for backend in backends]
    count_B = torch.tensor([4, 1, 3])

    def compare(tokens_BT: Tensor, **options: Any) -> None:
        pairs = zip(backends, states, strict=True)
        found, expected = (one.extend(tokens_BT, state, **options) for one, state in pairs)
        real_B = options.get("count_B", torch.full((len(tokens_BT),), tokens_BT.shape[1]))
        for row, real in enumerate([1] * len(real_B) if options.get("last") else real_B.tolist()):
            close(found[row, :real], expected[row, :real])
        assert states[0].lengths == states[1].lengths

    compare(ids(backends[0], 3, 4), count_B=count_B, last=True)
    compare(ids(backends[0], 3, 6), count_B=torch.tensor([6, 2, 5]))
    for state in states:
        state.rollback([a - b for a, b in zip(state.lengths, (5, 0, 2), strict=True)])
    compare(ids(backends[0], 3, 1))
    for state in states:
        state.select([2, 0])
    compare(ids(backends[0], 2, 3))
    states = [state.repeat_rows(3) for state in states]
    compare(ids(backends[0], 6, 2))
    for state in states:
        state.select([2, 2, 0, 3, 3, 4])
    compare(ids(backends[0], 6, 1))


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", ["marian", "silu", "learned", "text", "text rotary"])
@torch.inference_mode()
def test_drafts_equal_those_of_torch(kind, drafter) -> None:
    model = native_tiny.build(kind)
    backends = both(model, drafter=native_tiny.build_drafter(model, **DRAFTERS[drafter]))
    source = native_tiny.rows(model, LENGTHS)
    states = [backend.encode(source, capacity=30, drafting=True) for backend in backends]

    def compare(**options: Any) -> None:
        last_B1 = ids(backends[0], len(states[0].lengths), 1)
        pairs = zip(backends, states, strict=True)
        found, expected = (one.draft(last_B1, state, 4, **options) for one, state in pairs)
        assert torch.equal(found.tokens_BK, expected.tokens_BK)
        assert torch.equal(found.ids_BKC, expected.ids_BKC)
        close(found.prob_BKC, expected.prob_BKC)
        close(found.confidence_BK, expected.confidence_BK)

    def extend(tokens_BT: Tensor, **options: Any) -> None:
        for backend, state in zip(backends, states, strict=True):
            backend.extend(tokens_BT, state, **options)

    compare()  # before the first token the state is empty
    extend(ids(backends[0], 3, 5), count_B=torch.tensor([5, 1, 3]))
    compare(uniform_BK=torch.rand(3, 4), temperature=0.7)
    for state in states:
        state.rollback([2, 0, 3])
    compare()
    extend(ids(backends[0], 3, 2), count_B=torch.tensor([0, 2, 1]))
    for state in states:
        state.rollback([2, 1, 3])  # the first row returns to its length of two extends ago
        state.select([1, 0, 0])
    compare(uniform_BK=torch.rand(3, 4), temperature=3.0)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_partly_known_blocks_equal_those_of_torch(drafter) -> None:
    model = native_tiny.build("marian")
    backends = both(model, drafter=native_tiny.build_drafter(model, **DRAFTERS[drafter]))
    source = native_tiny.rows(model, LENGTHS)
    known_BK = ids(backends[0], 3, 12)  # longer than a block
    known_BK[torch.rand(known_BK.shape) < 0.6] = -1
    results = []
    for backend in backends:
        state = backend.encode(source, capacity=20, drafting=True)
        results.append(backend.predict(torch.full((3, 1), backend.start), state, known_BK))
    (token_BK, prob_BK), (expected_BK, expected_prob_BK) = results
    assert torch.equal(token_BK, expected_BK)
    close(prob_BK, expected_prob_BK)


@pytest.mark.parametrize("parts", [{}, {"upsample": 3, "norm": "post", "gated": True}], ids=str)
@pytest.mark.parametrize("kind", SEQ2SEQ)
def test_slots_equal_those_of_torch(kind, parts) -> None:
    model = native_tiny.build(kind)
    backends = both(model, ctc=native_tiny.build_ctc(model, **parts))
    source = native_tiny.rows(model, LENGTHS)
    states = [backend.encode(source, capacity=0, parallel=True) for backend in backends]
    known_BU = ids(backends[0], 3, 9 * parts.get("upsample", 2))
    known_BU[torch.rand(known_BU.shape) < 0.5] = -1
    for told in (None, known_BU):
        results = [one.ctc(state, told) for one, state in zip(backends, states, strict=True)]
        logits_BUV, expected_BUV = results
        per_token = backends[0].slots.per_token
        assert per_token == backends[1].slots.per_token
        for row, real in enumerate(LENGTHS):
            used = per_token * real
            close(logits_BUV[row, :used], expected_BUV[row, :used])


@pytest.mark.parametrize(
    "options",
    [
        {"beams": 4, "scores": True},
        {"beams": 3, "n_best": 3, "length_penalty": 0.4},
        {"strategy": "sample", "temperature": 1.3, "top_k": 9, "seed": 5},
        {"mode": "tandem", "temperature": 0.8, "seed": 2},
        {"mode": "tandem", "gamma": 0.5, "draft_tokens": 4},
        {"mode": "parallel", "decoder": "ctc", "iterations": 2},
        {"mode": "parallel", "decoder": "drafter", "iterations": 2},
    ],
    ids=str,
)
def test_every_decoding_loop_gives_the_text_of_torch(options) -> None:
    model = native_tiny.build("marian", seed=3)
    parts = {"drafter": native_tiny.build_drafter(model), "ctc": native_tiny.build_ctc(model)}
    source = native_tiny.rows(model, [5, 2, 9])
    requests = [Request(source=row, max_new_tokens=4 + 5 * n) for n, row in enumerate(source)]
    config = DecodeConfig(max_new_tokens=14, **options)
    found, expected = (decode(backend, requests, config) for backend in both(model, **parts))
    for row, other in zip(found, expected, strict=True):
        assert [one.tokens for one in row] == [one.tokens for one in other]
        assert [one.score for one in row] == pytest.approx([one.score for one in other], abs=1e-3)


def test_int8_is_close_to_float32() -> None:
    for kind in KINDS:
        model = native_tiny.build(kind)
        source, tokens_BT = native_tiny.rows(model, LENGTHS), torch.randint(20, (3, 8))
        results = []
        for dtype in ("int8", "float32"):
            backend = native_calls(model, dtype=dtype, threads=1)
            results.append(backend.extend(tokens_BT, backend.encode(source, capacity=8)))
        error = (results[0] - results[1]).norm() / results[1].norm()
        assert 1e-5 < error < 0.05, (kind, error)


def test_weights_of_other_dtypes_are_converted() -> None:
    model = native_tiny.build("marian").to(torch.bfloat16)
    backend = native_calls(model, dtype="float32", threads=1)
    expected = torch_calls(model.float())
    source, tokens_BT = native_tiny.rows(model, [4]), torch.tensor([[0, 5, 6]])
    found = backend.extend(tokens_BT, backend.encode(source, capacity=3))
    close(found, expected.extend(tokens_BT, expected.encode(source, capacity=3)))


def test_properties_that_decoding_loops_use() -> None:
    model = native_tiny.build("learned")
    backend = native_calls(model, drafter=native_tiny.build_drafter(model), threads=2)
    torch_backend = torch_calls(model, drafter=native_tiny.build_drafter(model))
    for name in (
        "vocab_size",
        "start",
        "eos",
        "ends",
        "pad",
        "max_length",
    ):
        assert getattr(backend, name) == getattr(torch_backend, name), name
    for name in ("longest", "longest_text"):
        assert getattr(backend.drafts, name) == getattr(torch_backend.drafts, name), name
    assert backend.slots is torch_backend.slots is None
    assert (backend.epsilon, backend.device, backend.dtype) == (0.0, "cpu", "int8")
    state = backend.encode([[3, 4], [5]], capacity=10)
    assert state.nbytes > 0
    assert state.lengths == [0, 0]


@pytest.mark.parametrize("kind", ["marian", "text rotary"])
def test_drafts_at_the_lowest_and_highest_temperature(kind) -> None:
    model = native_tiny.build(kind)
    backend = native_calls(model, drafter=native_tiny.build_drafter(model), threads=1)
    source = native_tiny.rows(model, [3, 5, 1])
    state = backend.encode(source, capacity=12, drafting=True)
    newest = torch.tensor([[4], [5], [6]])
    likeliest = backend.draft(newest, state, 4)
    for uniform in (0.0, 0.4, 1 - 2**-53):
        numbers = torch.full((3, 4), uniform, dtype=torch.float64)
        cold = backend.draft(newest, state, 4, temperature=1e-6, uniform_BK=numbers)
        assert torch.equal(cold.tokens_BK, likeliest.tokens_BK)
        assert torch.equal(cold.prob_BKC.max(-1).values, torch.ones(3, 4))
        hot = backend.draft(newest, state, 4, temperature=1e6, uniform_BK=numbers)
        alike = torch.full_like(hot.prob_BKC, 1 / hot.prob_BKC.shape[-1])
        torch.testing.assert_close(hot.prob_BKC, alike)
        assert (hot.ids_BKC == hot.tokens_BK[..., None]).any(-1).all()
