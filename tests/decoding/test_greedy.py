"""Greedy decoding of a toy model against a plain loop; batched rows equal single rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding import DecodeConfig, Hypothesis, Request
from outrider.errors import ConfigError, InputError
from tests.helpers.loops import greedy

requests = st.lists(
    st.builds(
        Request,
        source=st.lists(st.integers(2, 5), max_size=3).map(tuple),
        prompt=st.lists(st.integers(2, 5), max_size=4).map(tuple),
        max_new_tokens=st.none() | st.integers(1, 9),
    ),
    min_size=1,
    max_size=6,
)


def plain(backend, request: Request, limit: int) -> Hypothesis:
    """The definition: one row, one token at a time."""
    seen, out = (backend.start, *request.prompt), []
    while len(out) < limit:
        logits = backend.logits(tuple(request.source), seen)
        token = int(logits.argmax())
        if token in backend.ends:
            return Hypothesis(tuple(out), "eos")
        out.append(token)
        seen = (*seen, token)
    return Hypothesis(tuple(out), "length")


@settings(max_examples=60, deadline=None)
@given(requests=requests, table=st.integers(0, 99), ends=st.sampled_from([(1,), (1, 4), (5, 1, 3)]))
def test_any_batch_equals_the_definition(toy, requests, table, ends) -> None:
    backend = toy(table=table)
    backend.ends = ends
    config = DecodeConfig(max_new_tokens=8)
    together = greedy(backend, requests, config)
    assert together == [plain(backend, r, r.max_new_tokens or 8) for r in requests]


@pytest.mark.parametrize("asked", [0, -3])
def test_max_new_tokens_must_be_positive(toy, asked: int) -> None:
    message = rf"^max_new_tokens: got {asked}, expected 1 or more$"
    with pytest.raises(ConfigError, match=message):
        greedy(toy(), [Request(max_new_tokens=asked)], DecodeConfig())


def test_no_requests_give_no_output(toy) -> None:
    assert greedy(toy(), [], DecodeConfig()) == []


def test_finished_rows_are_not_computed(toy) -> None:
    backend = toy()
    requests = [Request(max_new_tokens=1, prompt=(2,)), Request(max_new_tokens=5, prompt=(3,))]
    config = DecodeConfig(min_new_tokens=5)
    greedy(backend, requests, config)
    assert backend.rows_computed == 2 + 2 + 4  # the prompts, the first tokens, the unfinished row


def test_texts_stop_at_the_last_position(toy) -> None:
    backend = toy(max_length=6)
    config = DecodeConfig(max_new_tokens=50, min_new_tokens=50)
    short, long = greedy(backend, [Request(prompt=(2,)), Request(prompt=(2, 3, 4))], config)
    # the start token and the prompt take positions, the last token does not
    assert (len(short.tokens), len(long.tokens)) == (5, 3)
    assert short.finish == long.finish == "length"


def test_a_prompt_as_long_as_the_model_is_refused(toy) -> None:
    with pytest.raises(InputError, match=r"^a prompt of 6 tokens .* model has 6 positions;"):
        greedy(toy(max_length=6), [Request(prompt=(2,) * 6)], DecodeConfig())


def test_suppressed_tokens_never_appear(toy) -> None:
    config = DecodeConfig(max_new_tokens=8, suppress=(1, 2, 3))
    outputs = greedy(toy(), [Request(source=(n,)) for n in range(20)], config)
    assert {token for output in outputs for token in output.tokens} == {0, 4, 5}


def test_min_new_tokens_delays_the_end(toy) -> None:
    outputs = greedy(
        toy(), [Request(source=(n,)) for n in range(50)], DecodeConfig(min_new_tokens=3)
    )
    lengths = {len(output.tokens) for output in outputs}
    assert min(lengths) == 3


def test_a_forced_end_is_the_last_token(toy) -> None:
    free = DecodeConfig(max_new_tokens=4, min_new_tokens=4)
    forced = free.changed(force_eos=True)
    (a,), (b,) = (greedy(toy(), [Request()], config) for config in (free, forced))
    assert b == Hypothesis(a.tokens[:3], "length")


def test_score_is_the_log_probability(toy) -> None:
    backend = toy()
    requests = [Request(source=(n,)) for n in range(8)]
    config = DecodeConfig(max_new_tokens=6, scores=True, suppress=(3,))
    for request, output in zip(requests, greedy(backend, requests, config), strict=True):
        seen, expected = (backend.start,), 0.0
        for token in (*output.tokens, *([backend.eos] if output.finish == "eos" else [])):
            logits = torch.from_numpy(backend.logits(request.source, seen).copy())
            expected += logits.log_softmax(-1)[token].item()
            seen = (*seen, token)
        assert output.score == pytest.approx(expected, abs=1e-5)
