"""Continuation in blocks against its definition; batched rows equal single rows."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding import DecodeConfig, Request
from outrider.decoding.queries import Logits, Nothing
from outrider.decoding.statistics import Statistics
from outrider.errors import ConfigError, ModelError
from outrider.torch.backend import TorchBackend
from outrider.torch.models.configs import DrafterConfig
from outrider.torch.models.drafter import Drafter
from tests.helpers import tiny
from tests.helpers.loops import parallel

EOS, PAD, BLOCK = 1, 0, 4

prompts = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(4, tiny.VOCABULARY - 1), max_size=6).map(tuple),
        max_new_tokens=st.integers(1, 14),
    ),
    min_size=1,
    max_size=4,
)


@cache
def backend(*, ends: float = 2.0) -> TorchBackend:
    """Random weights in float64, with a drafter that often drafts the end token."""
    target = tiny.language_model(dtype=torch.float64)
    with torch.no_grad():
        target.tokens.weight.mul_(3)
    config = DrafterConfig.for_target(target.config, block=BLOCK, train_block=3, rank=0)
    drafter = Drafter(config).double()
    with torch.no_grad():
        drafter.bias[PAD], drafter.bias[EOS] = -50.0, ends
    return TorchBackend(target, drafter=drafter)


def config(**options: Any) -> DecodeConfig:
    return DecodeConfig(mode="parallel", **options)


def by_hand(computer: TorchBackend, request: Request) -> list[int]:
    """Decode one row: argmax blocks of the drafter, each read by the model before the next."""
    state = computer.encode([()], capacity=60, drafting=True)
    *before, newest = [computer.start, *request.prompt]
    if before:
        computer.extend([before], state, Nothing(), last=True)
    text: list[int] = []
    assert request.max_new_tokens is not None
    while (room := request.max_new_tokens - len(text)) > 0:
        ((*block,),), _ = computer.drafts.predict([newest], state, [[-1] * BLOCK])
        block = block[: min(BLOCK, room)]
        if EOS in block:
            return [*text, *block[: block.index(EOS)]]
        computer.extend([[newest, *block[:-1]]], state, Nothing(), last=True)
        text, newest = [*text, *block], block[-1]
    return text


@settings(max_examples=25, deadline=None)
@given(rows=prompts)
def test_rows_equal_the_definition(rows: list[Request]) -> None:
    found = parallel(backend(), rows, config())
    for request, (text, *_) in zip(rows, found, strict=True):
        assert list(text.tokens) == by_hand(backend(), request)
        assert text.finish == ("eos" if len(text.tokens) < request.max_new_tokens else "length")


@settings(max_examples=15, deadline=None)
@given(rows=prompts, passes=st.integers(1, 3))
def test_further_iterations_do_not_depend_on_other_rows(rows: list[Request], passes: int) -> None:
    together = parallel(backend(), rows, config(iterations=passes))
    alone = [parallel(backend(), [row], config(iterations=passes))[0] for row in rows]
    assert together == alone


def test_scores_are_log_probabilities_of_the_model() -> None:
    computer = backend(ends=-50.0)
    row = Request(prompt=(5, 6), max_new_tokens=7)
    ((text, *_),) = parallel(computer, [row], config(scores=True))
    assert len(text.tokens) == 7
    state = computer.encode([()], capacity=60)
    fed = [computer.start, 5, 6, *text.tokens]
    logits = torch.tensor(computer.extend([fed[:-1]], state, Logits()))[0, 2:]
    wanted = logits.log_softmax(-1).gather(1, torch.tensor(text.tokens)[:, None]).sum()
    assert text.score == pytest.approx(float(wanted))


def test_fewer_passes_than_tokens() -> None:
    stats = Statistics()
    row = Request(prompt=(5,), max_new_tokens=12)
    parallel(backend(ends=-50.0), [row], config(), stats=stats)
    assert (stats.rounds, stats.tokens) == (12 // BLOCK, 12)


def test_suppressed_tokens_never_appear() -> None:
    computer, row = backend(ends=-50.0), Request(prompt=(5,), max_new_tokens=12)
    ((text, *_),) = parallel(computer, [row], config())
    banned = text.tokens[0]
    ((other, *_),) = parallel(computer, [row], config(suppress=(banned,)))
    assert banned not in other.tokens


def test_unsupported_options_are_refused() -> None:
    row = Request(prompt=(5,))
    with pytest.raises(ConfigError, match="candidates: mode parallel writes one continuation"):
        parallel(backend(), [row], config(candidates=2))
    with pytest.raises(ModelError, match="decoder ctc: a language model has no source"):
        parallel(backend(), [row], config(decoder="ctc"))
    with pytest.raises(ModelError, match="this model has neither"):
        parallel(TorchBackend(tiny.language_model()), [row], config())
