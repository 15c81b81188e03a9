"""Best of several sampled texts: each is a separate row, ranked by the model's log-probability."""

import math
from dataclasses import replace
from typing import Any

import pytest

from outrider.decoding import DecodeConfig, Request, decode
from outrider.decoding.session import Session
from tests.helpers.reference_backend import ReferenceBackend

WORDS = 6
REQUESTS = [Request((n % WORDS, 3), seed=100 + n) for n in range(8)]


def backend(table: int = 4) -> ReferenceBackend:
    return ReferenceBackend(WORDS, seed=table, block=4, skill=0.7)


def settings(**values: Any) -> Any:
    return DecodeConfig(**{"temperature": 1.3, "max_new_tokens": 7, **values})


def log_prob(model: ReferenceBackend, request: Request, tokens: list[int]) -> float:
    """Transcribed: mean log-probability over all tokens, scored one by one."""
    seen, found = (model.start,), []
    for token in tokens:
        scores = model.logits(tuple(request.source), seen)
        found.append(scores[token] - math.log(sum(math.exp(one) for one in scores)))
        seen = (*seen, token)
    return sum(found) / len(found)


@pytest.mark.parametrize("mode", ["ar", "tandem"])
def test_texts_are_sorted_by_log_probability(mode: str) -> None:
    model = backend()
    options = {"mode": mode, "draft_tokens": 3} if mode == "tandem" else {}
    found = decode(model, REQUESTS, settings(candidates=9, n_best=9, **options))
    assert any(len(row) > 2 for row in found)
    for request, row in zip(REQUESTS, found, strict=True):
        assert len({one.tokens for one in row}) == len(row)
        scores = [one.score for one in row]
        assert scores == sorted(scores, reverse=True)
        for one in row:
            said = [*one.tokens, *[model.eos] * (one.finish == "eos")]
            assert one.score == pytest.approx(log_prob(model, request, said), abs=1e-9)


def test_the_first_candidate_equals_a_single_sample_and_the_others_differ() -> None:
    alone = decode(backend(), REQUESTS, settings())
    of_all = decode(backend(), REQUESTS, settings(candidates=5, n_best=5))
    for (one,), several in zip(alone, of_all, strict=True):
        assert one.tokens in {text.tokens for text in several}
    assert any(
        several[0].tokens != one.tokens for (one,), several in zip(alone, of_all, strict=True)
    )
    one_seed = [replace(request, seed=7) for request in REQUESTS]
    assert decode(backend(), one_seed, settings(candidates=5)) != of_all


def test_candidates_do_not_depend_on_other_rows() -> None:
    config = settings(candidates=4, n_best=3)
    together = decode(backend(), REQUESTS, config)
    assert together == decode(backend(), REQUESTS, config, rows=5)
    assert together == [decode(backend(), [one], config)[0] for one in REQUESTS]


def test_a_cancelled_request_returns_its_best_hypotheses() -> None:
    session = Session(backend(), settings(candidates=3, n_best=3, min_new_tokens=6))
    number, other = session.add(REQUESTS[0]), session.add(REQUESTS[1])
    session.step()
    session.step()
    session.cancel(number)
    news = session.step()
    (stopped,) = [one for one in news if one.id == number]
    assert stopped.hypotheses is not None
    assert {one.finish for one in stopped.hypotheses} == {"cancelled"}
    assert all(len(one.tokens) == 2 for one in stopped.hypotheses)
    assert session.running == 1
    while session.busy:
        news = session.step()
    assert [one.id for one in news] == [other]
    assert (session.running, session.waiting) == (0, 0)
