"""A row's results are bit-identical in any batch, so tandem text equals greedy text."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.decoding import DecodeConfig, Proposal, Request
from outrider.decoding.drafts import worth_verifying
from outrider.decoding.queries import Argmax, Forbidden, Logits
from tests.helpers import native_tiny
from tests.helpers.loops import greedy, tandem
from tests.helpers.native_tiny import KINDS
from tests.helpers.tensor_calls import TensorCalls, native_calls

core = pytest.importorskip("outrider_native", reason="outrider-native is not installed")

SETS = core.instruction_sets()


def one_by_one(backend: TensorCalls, source: list[int], tokens: list[int]) -> Tensor:
    """Return the logits after every token of one text."""
    state = backend.encode([source], capacity=len(tokens))
    logits = [backend.extend(torch.tensor([[token]]), state) for token in tokens]
    return torch.cat(logits, dim=1)[0]


@settings(max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**16),
    dtype=st.sampled_from(["int8", "int8", "int8", "float32"]),
    instruction_set=st.sampled_from(SETS),
    threads=st.sampled_from([1, 1, 2, 3]),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 19), max_size=4),
    wrong=st.integers(0, 5),
)
def test_a_row_is_the_same_in_any_batch(
    kind, seed, dtype, instruction_set, threads, lengths, cuts, wrong
) -> None:
    """Token by token with portable C++, against blocks in a batch with some tokens rolled back."""
    model = native_tiny.build(kind, seed=seed)
    plain = native_calls(model, dtype=dtype, threads=1, instruction_set="portable")
    backend = native_calls(model, dtype=dtype, threads=threads, instruction_set=instruction_set)
    source = native_tiny.rows(model, lengths, seed)
    tokens_BT = torch.randint(plain.vocab_size, (len(lengths), 20))
    state = backend.encode(source, capacity=20)
    found = []
    for start, end in pairwise(sorted({0, 20, *cuts})):
        taken = min(end + wrong, 20)
        block_BT = tokens_BT[:, start:taken].clone()
        block_BT[:, end - start :].random_(plain.vocab_size)
        found.append(backend.extend(block_BT, state)[:, : end - start])
        state.rollback([end] * len(lengths))
    found_BTV = torch.cat(found, dim=1)
    row = seed % len(lengths)
    expected_TV = one_by_one(plain, source[row], tokens_BT[row].tolist())
    assert torch.equal(found_BTV[row], expected_TV)


@settings(max_examples=20)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**16),
    threads=st.sampled_from([1, 2, 3]),
    rows=st.integers(1, 9),
    width=st.integers(1, 6),
    forbidden=st.sets(st.integers(0, 22), max_size=22),
)
def test_the_argmax_token_has_the_largest_logit(
    kind, seed, threads, rows, width, forbidden
) -> None:
    model = native_tiny.build(kind, seed=seed)
    backend = native_calls(model, threads=threads)
    source = native_tiny.rows(model, [1 + n for n in range(rows)], seed)
    tokens_BT = torch.randint(backend.vocab_size, (rows, width))
    state = backend.encode(source, capacity=6)
    found = backend.likeliest(tokens_BT.tolist(), state, sorted(forbidden))
    logits_BTV = backend.extend(tokens_BT, backend.encode(source, capacity=6))
    logits_BTV[..., sorted(forbidden)] = -torch.inf
    assert found == logits_BTV.argmax(-1).tolist()


@settings(max_examples=20)
@given(
    kind=st.sampled_from(["marian", "silu", "learned"]),
    seed=st.integers(0, 2**16),
    threads=st.sampled_from([1, 2]),
    rows=st.integers(1, 5),
    data=st.data(),
    worth=st.floats(0, 1),
    forbidden=st.sets(st.integers(0, 22), max_size=3),
    ends=st.lists(st.integers(0, 22), max_size=8),
)
def test_one_call_drafts_and_then_verifies(
    kind, seed, threads, rows, data, worth, forbidden, ends
) -> None:
    """Rows differ in the number of drafted and of verified tokens."""
    model = native_tiny.build(kind, seed=seed)
    side_decoder = native_tiny.build_drafter(model)
    backend = native_calls(model, drafter=side_decoder, threads=threads, ends=ends)
    source = native_tiny.rows(model, [1 + n for n in range(rows)], seed)
    each = st.lists(st.integers(0, 5), min_size=rows, max_size=rows)
    counts, early = data.draw(each, "counts"), tuple(data.draw(each, "early"))
    newest = data.draw(each, "newest")
    states = [backend.encode(source, capacity=12, drafting=True) for _ in range(2)]

    draft = backend.drafts.draft(newest, states[0], counts)
    assert list(map(len, draft.tokens)) == list(map(len, draft.confidence)) == counts
    drafted = []
    for guesses, sure in zip(draft.tokens, draft.confidence, strict=True):
        row = [guesses], [sure]
        kept = worth_verifying(*row, min_survival=worth, ends=backend.ends)
        drafted.append(guesses[:kept])
    tokens = [[new, *some] for new, some in zip(newest, drafted, strict=True)]
    query = Argmax(Forbidden(tuple(sorted(forbidden)), backend.ends, early))
    best = query.answer(backend.extend(tokens, states[0], Logits()))

    backend.likeliest([[1]] * rows, states[1], [])
    found = backend.drafts.draft_and_verify(
        newest, states[1], counts, query, cached=[0] * rows, min_survival=worth
    )
    assert found.drafted == drafted
    assert [len(row) for row in found.confidence] == [len(row) for row in drafted]
    for mine, other in zip(found.best.tokens, best.tokens, strict=True):
        assert mine == other[: len(mine)]
    assert [len(row) for row in found.best.tokens] == [len(row) for row in tokens]
    assert states[1].lengths == states[0].lengths


@settings(max_examples=25)
@given(
    kind=st.sampled_from(["marian", "silu", "learned", "text rotary"]),
    drafter=st.sampled_from(list(native_tiny.DRAFTERS)),
    seed=st.integers(0, 2**16),
    instruction_set=st.sampled_from(SETS),
    threads=st.sampled_from([1, 2]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
)
def test_a_draft_is_the_same_in_any_batch(
    kind, drafter, seed, instruction_set, threads, lengths
) -> None:
    model = native_tiny.build(kind, seed=seed)
    side_decoder = native_tiny.build_drafter(model, **native_tiny.DRAFTERS[drafter])
    plain = native_calls(model, drafter=side_decoder, threads=1, instruction_set="portable")
    backend = native_calls(
        model, drafter=side_decoder, threads=threads, instruction_set=instruction_set
    )
    source = native_tiny.rows(model, lengths, seed)
    tokens_BT = torch.randint(plain.vocab_size, (len(lengths), 10))
    uniform_BK = torch.rand(len(lengths), 4)
    state = backend.encode(source, capacity=16, drafting=True)
    backend.extend(tokens_BT[:, :9], state, count_B=torch.tensor(lengths))
    found = backend.draft(tokens_BT[:, 9:], state, 4, uniform_BK=uniform_BK)
    row = seed % len(lengths)
    one = slice(row, row + 1)
    state = plain.encode(source[one], capacity=16, drafting=True)
    for place in range(lengths[row]):
        plain.extend(tokens_BT[one, place : place + 1], state)
    expected = plain.draft(tokens_BT[one, 9:], state, 4, uniform_BK=uniform_BK[one])
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine[one], other)


@pytest.mark.parametrize("instruction_set", SETS)
def test_slots_are_the_same_in_any_batch(instruction_set) -> None:
    model = native_tiny.build("marian")
    ctc = native_tiny.build_ctc(model)
    plain = native_calls(model, ctc=ctc, threads=1, instruction_set="portable")
    backend = native_calls(model, ctc=ctc, threads=2, instruction_set=instruction_set)
    source = native_tiny.rows(model, [7, 2, 30, 11])
    known_BU = torch.randint(-1, plain.vocab_size, (4, 60))
    logits_BUV = backend.ctc(backend.encode(source, capacity=0, parallel=True), known_BU)
    for row, one in enumerate(source):
        slots = 2 * len(one)
        state = plain.encode([one], capacity=0, parallel=True)
        alone_1UV = plain.ctc(state, known_BU[row : row + 1, :slots])
        assert torch.equal(logits_BUV[row, :slots], alone_1UV[0])


class Oracle:
    """A backend that drafts the model's own continuation, with some tokens replaced."""

    def __init__(self, inner: TensorCalls, skill: float, seed: int) -> None:
        self.inner, self.skill = inner, skill
        self.dice = np.random.default_rng(seed)
        self.longest = inner.drafts.longest
        self.drafts = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def draft(self, newest: list[int], state: Any, tokens: list[int]) -> Proposal:
        heard = self.inner.drafts.draft(newest, state, tokens)
        # Copies of the rows continue greedily, next to rows without new tokens.
        rows = list(range(len(newest)))
        state.select(rows + rows)
        chosen, fed = [], list(newest)
        for _ in range(max(tokens)):
            both = [*([] for _ in rows), *([token] for token in fed)]
            best = self.inner.backend.extend(both, state, Argmax()).tokens
            fed = [token for (token,) in best[len(rows) :]]
            chosen.append([self._spoilt(token) for token in fed])
        state.select(rows)
        return heard._replace(tokens=[list(row) for row in zip(*chosen, strict=True)])

    def _spoilt(self, token: int) -> int:
        wrong = self.dice.random() > self.skill
        return int(self.dice.integers(self.inner.vocab_size)) if wrong else token


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**16),
    rows=st.integers(1, 6),
    k=st.integers(1, 8),
    skill=st.none() | st.sampled_from([0.6, 0.9, 1.0]),
    instruction_set=st.sampled_from(SETS),
    threads=st.sampled_from([1, 1, 2]),
)
def test_tandem_equals_greedy(kind, seed, rows, k, skill, instruction_set, threads) -> None:
    """Greedy rows alone with one instruction set, a tandem batch with another."""
    model = native_tiny.build(kind, seed=seed)
    drafter = native_tiny.build_drafter(model, seed=seed)
    plain = native_calls(model, threads=1, instruction_set="portable")
    backend: Any = native_calls(
        model, drafter=drafter, threads=threads, instruction_set=instruction_set
    )
    source = native_tiny.rows(model, [1 + seed % 5 + n for n in range(rows)], seed)
    requests = [
        Request(source=row, prompt=[3] * (n % 3), max_new_tokens=3 + 4 * n)
        for n, row in enumerate(source)
    ]
    expected = [greedy(plain, [request], DecodeConfig())[0] for request in requests]
    if skill is not None:
        backend = Oracle(backend, skill, seed)
    assert tandem(backend, requests, DecodeConfig(mode="tandem", draft_tokens=k)) == expected


@settings(max_examples=30)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**16),
    rows=st.integers(1, 6),
    k=st.none() | st.integers(1, 32),
    instruction_set=st.sampled_from(SETS),
)
def test_source_copies_without_a_drafter(kind, seed, rows, k, instruction_set) -> None:
    """The text to copy from is the model's own, with an inserted token that interrupts the copy."""
    model = native_tiny.build(kind, seed=seed)
    backend = native_calls(model, threads=1, instruction_set=instruction_set)
    requests = [
        Request(source=row, prompt=[3] * (n % 3), max_new_tokens=3 + 4 * n)
        for n, row in enumerate(native_tiny.rows(model, [1 + seed % 5] * rows, seed))
    ]
    expected = greedy(backend, requests, DecodeConfig())
    copies = [
        replace(request, text=[*text.tokens[: seed % 9], 3, *text.tokens])
        for request, text in zip(requests, expected, strict=True)
    ]
    config = DecodeConfig(mode="tandem", draft="source", draft_tokens=k)
    assert tandem(backend, copies, config) == expected


def test_blocks_of_correct_drafts_are_accepted() -> None:
    """`test_tandem_equals_greedy` could pass with refused drafts alone."""
    model = native_tiny.build("marian")
    backend: Any = native_calls(model, drafter=native_tiny.build_drafter(model), threads=1)
    request = Request(source=(4, 5, 1), max_new_tokens=27)
    config = DecodeConfig(mode="tandem", draft_tokens=8, min_new_tokens=27)
    (best,) = tandem(Oracle(backend, 1.0, 0), [request], config)
    assert [one.accepted for one in best.rounds] == [8, 8, 8]
