"""Beam search against full enumeration, greedy decoding and single rows."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding import DecodeConfig, Hypothesis, Request, decode
from tests.helpers.loops import beam, greedy


def enumerate_all(backend, request: Request, config: DecodeConfig) -> list[Hypothesis]:
    """Score every sequence of at most `max_new_tokens`, best first, by the definition."""
    found = []
    words = [token for token in range(backend.vocab_size) if token not in backend.ends]
    for length in range(config.max_new_tokens + 1):
        for tokens in product(words, repeat=length):
            ended = length < config.max_new_tokens
            if ended and length < config.min_new_tokens:
                continue
            for end in [(end,) for end in backend.ends] if ended else [()]:
                whole = (*tokens, *end)
                seen, total = (backend.start, *request.prompt), 0.0
                for token in whole:
                    logits = torch.from_numpy(backend.logits(tuple(request.source), seen).copy())
                    total += logits.log_softmax(-1)[token].item()
                    seen = (*seen, token)
                score = total / len(whole) ** config.length_penalty
                found.append(Hypothesis(tokens, "eos" if ended else "length", score))
    return sorted(found, key=lambda h: -h.score)


@settings(max_examples=25, deadline=None)
@given(
    table=st.integers(0, 999),
    length=st.integers(1, 4),
    length_penalty=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]),
    min_new_tokens=st.integers(0, 2),
    source=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    ends=st.sampled_from([(1,), (1, 3)]),
)
def test_a_wide_beam_equals_full_enumeration(
    toy, table, length, length_penalty, min_new_tokens, source, ends
) -> None:
    backend = toy(vocab_size=4, table=table)
    backend.ends = ends
    config = DecodeConfig(
        beams=256,
        n_best=20,
        max_new_tokens=length,
        min_new_tokens=min(min_new_tokens, length - 1),
        length_penalty=length_penalty,
    )
    (found,) = beam(backend, [Request(source=source)], config)
    expected = enumerate_all(backend, Request(source=source), config)[:20]
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    assert [h.finish for h in found] == [h.finish for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(table=st.integers(0, 999), lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_one_beam_equals_greedy(toy, table, lengths) -> None:
    requests = [Request(source=(n,), max_new_tokens=m) for n, m in enumerate(lengths)]
    searched = beam(toy(table=table), requests, DecodeConfig(beams=1, strategy="beam"))
    walked = greedy(toy(table=table), requests, DecodeConfig())
    assert [h.tokens for (h,) in searched] == [h.tokens for h in walked]
    assert [h.finish for (h,) in searched] == [h.finish for h in walked]


@settings(max_examples=50, deadline=None)
@given(
    table=st.integers(0, 999),
    rows=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=2, max_size=5),
    beams=st.integers(1, 5),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0]),
    force_eos=st.booleans(),
)
def test_a_row_alone_equals_that_row_in_a_batch(
    toy, table, rows, beams, length_penalty, force_eos
) -> None:
    config = DecodeConfig(
        strategy="beam",
        beams=beams,
        n_best=beams,
        length_penalty=length_penalty,
        force_eos=force_eos,
    )
    requests = [
        Request(source=(n,), prompt=(2, 3, 4)[:prompt], max_new_tokens=limit)
        for n, (limit, prompt) in enumerate(rows)
    ]
    together = beam(toy(table=table), requests, config)
    assert together == [beam(toy(table=table), [r], config)[0] for r in requests]


def test_n_best_is_sorted_and_distinct(toy) -> None:
    (found,) = beam(toy(), [Request()], DecodeConfig(beams=5, n_best=5, max_new_tokens=6))
    assert len({h.tokens for h in found}) == 5
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


def test_finished_searches_are_not_computed(toy) -> None:
    backend = toy()
    requests = [Request(max_new_tokens=1), Request(max_new_tokens=4, source=(3,))]
    beam(backend, requests, DecodeConfig(beams=3, min_new_tokens=4))
    assert backend.rows_computed == 2 + 3 * 3


def test_no_requests_give_no_output(toy) -> None:
    assert beam(toy(), [], DecodeConfig(beams=2)) == []


def test_suppressed_tokens_never_appear(toy) -> None:
    config = DecodeConfig(beams=4, n_best=4, max_new_tokens=5, suppress=(2, 3))
    outputs = beam(toy(), [Request(source=(n,)) for n in range(10)], config)
    assert {t for found in outputs for h in found for t in h.tokens} == {0, 4, 5}


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
def test_decode_runs_the_loop_that_the_config_selects(toy, strategy) -> None:
    loop = {"greedy": greedy, "beam": beam}.get(strategy)
    config = DecodeConfig(strategy=strategy, max_new_tokens=5)
    requests = [Request(source=(n,)) for n in range(3)]
    outputs = decode(toy(), requests, config)
    assert [len(found) for found in outputs] == [1, 1, 1]
    if loop is beam:
        assert outputs == beam(toy(), requests, config)
    if loop is greedy:
        assert outputs == [[h] for h in greedy(toy(), requests, config)]
