"""Drafts copied from the source text: for any source, the text equals plain decoding."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding import Controller, DecodeConfig, Request, Session, Statistics
from outrider.decoding.drafts import History
from outrider.decoding.drafts.source import LONGEST_MATCH, Source
from outrider.errors import ConfigError
from outrider.torch.backend import TorchBackend
from tests.decoding.test_tandem import FORGETFUL, KINDS, random_clock, tiny_requests
from tests.decoding.test_tandem_sampling import Tables, sampling, surprise
from tests.helpers.loops import greedy, tandem
from tests.helpers.reference_backend import ReferenceBackend

words = st.lists(st.integers(0, 5), max_size=12)


@given(
    source=words, target=st.lists(st.integers(0, 5), min_size=1, max_size=12), k=st.integers(0, 9)
)
def test_the_tokens_after_the_longest_match_are_proposed(source, target, k) -> None:
    expected: list[int] = []
    for match in range(1, LONGEST_MATCH + 1):
        ends = [n for n in range(match, len(source)) if source[n - match : n] == target[-match:]]
        expected = source[ends[-1] :][:k] if ends else expected
    proposal = Source(ReferenceBackend()).propose([History(source, target)], [k])
    assert proposal == ([expected], None, None)


requests = st.lists(
    st.builds(
        Request,
        source=st.lists(st.integers(2, 5), max_size=3).map(tuple),
        prompt=st.lists(st.integers(2, 5), max_size=6).map(tuple),
        text=st.lists(st.integers(0, 5), max_size=30).map(tuple),
        max_new_tokens=st.integers(1, 12),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=80)
@given(
    requests=requests,
    values=st.fixed_dictionaries(
        {
            "min_new_tokens": st.integers(0, 7),
            "force_eos": st.booleans(),
            "suppress": st.sampled_from([(), (3,), (0, 2)]),
        }
    ),
    k=st.none() | st.integers(1, 9),
    table=st.integers(0, 99),
    max_length=st.none() | st.integers(7, 14),
    seed=st.none() | st.integers(0, 99),
)
def test_greedy_text_does_not_change(requests, values, k, table, max_length, seed) -> None:
    backend = ReferenceBackend(6, max_length, seed=table)
    config = DecodeConfig(mode="tandem", draft="source", draft_tokens=k, scores=True, **values)
    controller = None if seed is None else Controller(8, clock=random_clock(seed))
    expected = greedy(backend, requests, DecodeConfig(**values, scores=True))
    found = tandem(backend, requests, config, controller=controller)
    assert [(h.tokens, h.finish) for h in found] == [(h.tokens, h.finish) for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-4)


@pytest.mark.parametrize("kind", KINDS | FORGETFUL)
def test_models_without_a_drafter_decode_in_tandem(kind) -> None:
    """Half of each source text is the model's output."""
    backend = TorchBackend((KINDS | FORGETFUL)[kind](seed=3))
    requests = tiny_requests(kind, 4, seed=3)
    expected = greedy(backend, requests, DecodeConfig())
    copied = [
        Request(
            source=request.source,
            prompt=request.prompt,
            max_new_tokens=request.max_new_tokens,
            text=[*text.tokens[: len(text.tokens) // 2], 3, *text.tokens],
        )
        for request, text in zip(requests, expected, strict=True)
    ]
    for options in ({"draft_tokens": 3}, {"draft_tokens": 32}, {"strict": True}):
        stats = Statistics()
        config = DecodeConfig(mode="tandem", draft="source", **options)
        assert tandem(backend, copied, config, stats=stats) == expected
        assert stats.tokens_per_round > 1


def test_a_copied_text_takes_few_rounds() -> None:
    backend = ReferenceBackend(40)
    request = Request(source=(3,), prompt=(9,), max_new_tokens=25)
    config = DecodeConfig(min_new_tokens=25)
    (text,) = greedy(backend, [request], config)
    stats, copied = (
        Statistics(),
        Request(source=(3,), prompt=(9,), max_new_tokens=25, text=(9, *text.tokens)),
    )
    config = DecodeConfig(mode="tandem", draft="source", draft_tokens=8, min_new_tokens=25)
    assert tandem(backend, [copied], config, stats=stats) == [text]
    assert (stats.rounds, stats.acceptance) == (3, 1.0)


def test_a_language_model_copies_from_its_prompt() -> None:
    backend, stats = ReferenceBackend(3), Statistics()
    config = DecodeConfig(mode="tandem", draft="source", draft_tokens=4, max_new_tokens=9)
    tandem(backend, [Request(prompt=(2, 2, 2, 2, 2, 2))], config, stats=stats)
    assert stats.drafted


@pytest.mark.parametrize("text", [(2, 3, 2, 2, 3, 3, 2), (0, 1, 2, 3), ()])
def test_sampled_texts_follow_the_model(text) -> None:
    model, config = Tables(anchored=True), sampling(draft="source")
    assert abs(surprise(model, config, text=text)) < 4


def test_sampled_rows_depend_on_their_seed_alone() -> None:
    model, config = Tables(anchored=True), sampling(draft="source", max_new_tokens=12)
    requests = [Request(seed=n, text=(2, 3, 3, 2)[: n % 5]) for n in range(20)]
    alone = [tandem(model, [request], config)[0] for request in requests]
    assert tandem(model, requests, config) == alone


def test_each_source_has_its_own_controller() -> None:
    backend, controllers = ReferenceBackend(7, block=6), dict[str, Controller]()
    session = Session(backend, controllers=controllers)
    for n in range(40):
        config = DecodeConfig(mode="tandem", draft="source" if n % 2 else "drafter")
        session.add(Request(source=(n % 7,), text=(2, 3), max_new_tokens=9, config=config))
    done = sorted(session.drain(), key=lambda row: row.id)
    requests = [row.request for row in done]
    assert [row.hypotheses()[0].tokens for row in done] == [
        text.tokens for text in greedy(backend, requests, DecodeConfig())
    ]
    assert sorted(controllers) == ["drafter", "source"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.5}, r"^gamma: got 0.5, but draft source has no probabilities; use 0$"),
        ({"draft_tokens": 33}, r"^draft_tokens: got 33, but this source drafts at most 32$"),
    ],
    ids=str,
)
def test_unsupported_options_are_refused(options, message) -> None:
    config = DecodeConfig(mode="tandem", draft="source", **options)
    with pytest.raises(ConfigError, match=message):
        tandem(ReferenceBackend(), [Request()], config)
