"""Tandem decoding: greedy text does not change, whatever is drafted."""

import copy
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding import Controller, DecodeConfig, Proposal, Request, Statistics, decode
from outrider.decoding import accept as accept_module
from outrider.decoding.drafts import worth_verifying
from outrider.decoding.queries import Argmax
from outrider.errors import ConfigError, ModelError
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Drafter, DrafterConfig, LanguageModel
from outrider.torch.nn.attention import attention_kinds, load_attention
from tests.helpers import tiny
from tests.helpers.loops import greedy, tandem
from tests.helpers.reference_backend import ReferenceDrafts


class CountedDrafts(ReferenceDrafts):
    def draft(self, *inputs: Any, **options: Any) -> Proposal:
        self.backend.drafted += 1
        return super().draft(*inputs, **options)


@pytest.fixture(scope="session")
def drafting(toy) -> type:
    """The toy model with a drafter; higher skill means more agreement with the model."""

    class Drafting(toy):
        epsilon = 1e-7

        def __init__(self, *args, skill=0.5, **options) -> None:
            super().__init__(*args, **options)
            self.drafts = CountedDrafts(self, 6, skill)
            self.drafted = 0

    return Drafting


requests = st.lists(
    st.builds(
        Request,
        source=st.lists(st.integers(2, 5), max_size=3).map(tuple),
        prompt=st.lists(st.integers(2, 5), max_size=4).map(tuple),
        max_new_tokens=st.none() | st.integers(1, 12),
    ),
    min_size=1,
    max_size=6,
)
options = st.fixed_dictionaries(
    {
        "max_new_tokens": st.integers(1, 12),
        "min_new_tokens": st.integers(0, 7),
        "force_eos": st.booleans(),
        "suppress": st.sampled_from([(), (3,), (0, 2)]),
    }
)


def tandem_config(values: dict[str, Any], **more: Any) -> DecodeConfig:
    return DecodeConfig(mode="tandem", **values, **more)


@settings(max_examples=120)
@given(
    requests=requests,
    values=options,
    k=st.integers(1, 6),
    skill=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    table=st.integers(0, 99),
    max_length=st.none() | st.integers(5, 14),
    ends=st.sampled_from([(1,), (1, 4), (5, 1)]),
)
def test_equals_greedy(drafting, requests, values, k, skill, table, max_length, ends) -> None:
    backend = drafting(table=table, skill=skill, max_length=max_length)
    backend.ends, backend.eos = ends, ends[0]
    stats = Statistics()
    found = tandem(
        backend, requests, tandem_config(values, draft_tokens=k, scores=True), stats=stats
    )
    expected = greedy(backend, requests, DecodeConfig(**values, scores=True))
    assert [(h.tokens, h.finish) for h in found] == [(h.tokens, h.finish) for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-4)
    check_rounds(found, backend, k, stats, values["force_eos"])


def check_rounds(found, backend, k: int, stats: Statistics, force_eos: bool) -> None:
    """The rounds explain every token, and the statistics are their sums."""
    emitted = 0
    for hypothesis in found:
        said: list[int] = []
        for one in hypothesis.rounds:
            assert one.accepted <= len(one.drafted) <= k
            said += one.drafted[: one.accepted]
            said += [] if one.token is None else [one.token]
        emitted += len(said)
        if hypothesis.finish == "eos" or force_eos:
            said = said[:-1]
        assert tuple(said) == hypothesis.tokens
    assert stats.tokens == emitted
    assert stats.rounds == sum(len(hypothesis.rounds) for hypothesis in found)
    rates = stats.acceptance_by_position
    assert len(rates) <= k
    assert all(0 <= rate <= 1 for rate in rates)
    assert sum(stats.accepted) <= sum(stats.judged) <= sum(stats.drafted)


def random_clock(seed: int) -> Callable[[], float]:
    """A clock by which calls take random times, so that every choice occurs."""
    dice, now = random.Random(seed), [0.0]

    def clock() -> float:
        now[0] += dice.choice([0.001, 0.01, 0.1, 1.0])
        return now[0]

    return clock


@settings(max_examples=60)
@given(
    requests=requests,
    values=options,
    table=st.integers(0, 99),
    seed=st.integers(0, 999),
)
def test_a_controller_does_not_change_the_text(drafting, requests, values, table, seed) -> None:
    backend = drafting(table=table, skill=0.8)
    controller = Controller(backend.drafts.longest, clock=random_clock(seed))
    expected = greedy(backend, requests, DecodeConfig(**values))
    for _ in range(6):  # later runs use the estimates of earlier ones
        stats = Statistics()
        found = tandem(backend, requests, tandem_config(values), controller=controller, stats=stats)
        assert found == expected
        assert (stats.plain_rows == 0) == bool(stats.rounds)


def bad_drafter(target, seed: int, block: int = 8) -> Drafter:
    torch.manual_seed(seed)
    config = DrafterConfig.for_target(target.config, rank=4, candidates=5, block=block, dropout=0.0)
    drafter = Drafter(config)
    with torch.no_grad():
        drafter.bias.normal_(std=0.5)
    return drafter


class Oracle:
    """A backend that drafts the model's own continuation, with some tokens replaced."""

    def __init__(self, inner: TorchBackend, skill: float, seed: int) -> None:
        self.inner, self.skill = inner, skill
        self.dice = np.random.default_rng(seed)
        self.longest = inner.drafts.longest
        self.drafts = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def draft(self, newest: list[int], state: Any, tokens: list[int]) -> Proposal:
        heard = self.inner.drafts.draft(newest, state, tokens)
        # The model continues in a copy of the state.
        ahead = copy.deepcopy(state, {id(state.drafter): state.drafter})
        chosen, fed = [], [[token] for token in newest]
        for _ in range(max(tokens)):
            fed = self.inner.extend(fed, ahead, Argmax()).tokens
            chosen.append([self._spoilt(token) for (token,) in fed])
        guesses = zip(zip(*chosen, strict=True), tokens, strict=True)
        return heard._replace(tokens=[list(row[:count]) for row, count in guesses])

    def _spoilt(self, token: int) -> int:
        wrong = self.dice.random() > self.skill
        return int(self.dice.integers(self.inner.vocab_size)) if wrong else token


KINDS: dict[str, Any] = {
    "seq2seq": tiny.seq2seq,
    "marian": tiny.marian_like,
    "language_model": tiny.language_model,
    "rotary": lambda **o: tiny.language_model(position="rotary", num_key_value_heads=1, **o),
    "learned": lambda **o: tiny.language_model(position="learned", max_positions=24, **o),
    "relative": lambda **o: tiny.language_model(position="relative", num_key_value_heads=1, **o),
    "alibi": lambda **o: tiny.language_model(position="alibi", **o),
    "coordinate": lambda **o: tiny.language_model(position="coordinate", **o),
    "memory": lambda **o: tiny.language_model(position="relative", memory=2, max_positions=3, **o),
}


def patterned(kind: str, **options: Any) -> LanguageModel:
    """A tiny language model whose attention pattern matters for short texts."""
    spec = {"kind": kind, **tiny.SMALL.get(kind, {})}
    return tiny.language_model(attention=spec, num_attention_heads=4, **options)


KINDS |= {
    kind: partial(patterned, kind)
    for kind in attention_kinds()
    if load_attention(kind).Attention.causal_ok
}


def tiny_requests(kind: str, count: int, seed: int) -> list[Request]:
    dice = torch.Generator().manual_seed(seed)

    def ids(low: int, high: int) -> list[int]:
        length = int(torch.randint(low, high, (), generator=dice))
        return torch.randint(3, tiny.VOCABULARY, (length,), generator=dice).tolist()

    reads = kind in ("seq2seq", "marian")
    return [
        Request(source=[*ids(1, 7), 1] if reads else (), prompt=ids(0, 5), max_new_tokens=3 + 3 * n)
        for n in range(count)
    ]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**16),
    rows=st.integers(1, 5),
    k=st.integers(1, 8),
    skill=st.none() | st.sampled_from([0.6, 0.9, 1.0]),
)
def test_equals_greedy_with_real_models(kind, seed, rows, k, skill) -> None:
    model = KINDS[kind](seed=seed)
    backend: Any = TorchBackend(model, drafter=bad_drafter(model, seed))
    requests = tiny_requests(kind, rows, seed)
    expected = greedy(backend, requests, DecodeConfig())
    if skill is not None:
        backend = Oracle(backend, skill, seed)
    assert tandem(backend, requests, DecodeConfig(mode="tandem", draft_tokens=k)) == expected


FORGETFUL: dict[str, Any] = {
    **{kind: KINDS[kind] for kind in attention_kinds() if kind in tiny.SMALL and kind in KINDS},
    "gru": lambda **o: tiny.language_model(core="gru", **o),
    "position_mlp": lambda **o: tiny.language_model(position_mlp=3, **o),
    "position_correlation": lambda **o: tiny.language_model(position_correlation=2, **o),
}


@pytest.mark.parametrize("kind", FORGETFUL)
def test_blocks_longer_than_a_window_can_be_rolled_back(kind) -> None:
    """Caches that drop old tokens keep enough for a whole block and its rollback."""
    model = FORGETFUL[kind](seed=1)
    backend: Any = TorchBackend(model, drafter=bad_drafter(model, 1, block=100))
    lengths = (90, 67)
    requests = [Request(prompt=(5, 6, 7)[: n % 4], max_new_tokens=n) for n in lengths]
    expected = greedy(backend, requests, DecodeConfig(min_new_tokens=90))
    backend = Oracle(backend, 0.97, 1)
    config = DecodeConfig(mode="tandem", draft_tokens=80, min_new_tokens=90)
    assert tandem(backend, requests, config) == expected


def test_good_drafts_save_passes() -> None:
    model = tiny.seq2seq()
    backend: Any = Oracle(TorchBackend(model, drafter=bad_drafter(model, 0)), 1.0, 0)
    request = Request(source=(4, 5, 1), max_new_tokens=27)
    config = DecodeConfig(mode="tandem", draft_tokens=8, min_new_tokens=27)
    stats = Statistics()
    ((best,),) = decode(backend, [request], config, stats=stats)
    assert (stats.rounds, stats.tokens_per_round, stats.acceptance) == (3, 9.0, 1.0)
    assert [len(one.drafted) for one in best.rounds] == [8, 8, 8]
    assert set(stats.seconds) == {"encode", "draft", "verify", "loop", "plain"}
    assert all((seconds > 0) == (part != "plain") for part, seconds in stats.seconds.items())


def test_without_gamma_no_distribution_is_computed(drafting, monkeypatch) -> None:
    monkeypatch.setattr(accept_module, "mix", None)
    monkeypatch.setattr(accept_module, "distribution", None)
    assert tandem(drafting(), [Request()], DecodeConfig(mode="tandem", max_new_tokens=9))


@settings(max_examples=40)
@given(requests=requests, values=options, k=st.integers(1, 6), table=st.integers(0, 99))
def test_gamma_1_accepts_every_allowed_draft(drafting, requests, values, k, table) -> None:
    backend = drafting(table=table, skill=0.2)
    config = tandem_config(values, gamma=1.0, draft_tokens=k)
    for hypothesis in tandem(backend, requests, config):
        at = 0
        for one in hypothesis.rounds:
            forbidden = set(values["suppress"])
            for place, token in enumerate(one.drafted):
                early = at + place < values["min_new_tokens"]
                refused = token in forbidden or (early and token == backend.eos)
                assert refused == (place == one.accepted)
                if refused:
                    break
            at += one.accepted + (one.token is not None)
        assert not forbidden & set(hypothesis.tokens)


@pytest.fixture(scope="session")
def memoryless(drafting) -> type:
    """A drafter whose drafts at a position do not depend on the start of the block."""

    class ForgetfulDrafts(CountedDrafts):
        def opinion(self, source, seen, begun):
            return super().opinion(source, seen, 0)

    class Memoryless(drafting):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            self.drafts = ForgetfulDrafts(self, 6, 0.0)

    return Memoryless


@settings(max_examples=40)
@given(
    requests=requests,
    values=options,
    table=st.integers(0, 99),
    max_length=st.sampled_from([None, 9]),
)
def test_with_gamma_1_the_text_is_the_drafters_for_any_block(
    memoryless, requests, values, table, max_length
) -> None:
    """No token is the model's own, so the block length does not matter."""
    backend = memoryless(table=table, max_length=max_length)
    texts = [
        [(h.tokens, h.finish) for h in tandem(backend, requests, config)]
        for config in (tandem_config(values, gamma=1.0, draft_tokens=k) for k in (1, 2, 3, 6))
    ]
    assert texts[0] == texts[1] == texts[2] == texts[3]


@pytest.mark.parametrize("gamma", [0.3, 0.7])
def test_a_round_with_gamma_adds_only_verified_tokens(memoryless, gamma) -> None:
    """Each token is the argmax of the mixture, so the block length does not matter."""
    requests = [Request(source=(n,)) for n in range(12)]
    found = [
        tandem(memoryless(), requests, DecodeConfig(gamma=gamma, draft_tokens=k, max_new_tokens=15))
        for k in (1, 3, 6)
    ]
    assert found[0] == found[1] == found[2]
    rounds = [one for hypothesis in found[2] for one in hypothesis.rounds]
    assert all(one.token is None or one.accepted < len(one.drafted) for one in rounds)


def test_gamma_1_in_one_block_equals_parallel_text() -> None:
    model = tiny.seq2seq(dtype=torch.float64)
    drafter = bad_drafter(model, 3).double()
    with torch.no_grad():
        drafter.bias[0], drafter.bias[1] = -50.0, 1.0
    backend = TorchBackend(model, drafter=drafter)
    requests = [Request(source=(4 + n, 9, 6, 1)) for n in range(8)]
    parallel = decode(backend, requests, DecodeConfig(decoder="drafter", max_new_tokens=8))
    trusting = DecodeConfig(gamma=1.0, draft_tokens=8, max_new_tokens=8)
    assert decode(backend, requests, trusting) == parallel


@settings(max_examples=40)
@given(table=st.integers(0, 999), gamma=st.sampled_from([0.25, 0.5, 0.75]), suppress=st.booleans())
def test_greedy_takes_the_argmax_of_the_mixture(drafting, table, gamma, suppress) -> None:
    """Every verified token against the mixture, computed in float64."""
    backend = drafting(table=table, skill=0.3)
    forbidden = (3,) if suppress else ()
    config = DecodeConfig(
        mode="tandem", gamma=gamma, draft_tokens=4, max_new_tokens=9, suppress=forbidden
    )
    request = Request(source=(2, 3))
    ((best,),) = decode(backend, [request], config)
    seen: tuple[int, ...] = (backend.start,)
    for one in best.rounds:
        _, _, ids, prob = backend.drafts.draft_row(request.source, seen, 4)
        said = [*one.drafted[: one.accepted], *([] if one.token is None else [one.token])]
        for place, token in enumerate(said):
            p = torch.from_numpy(backend.logits(request.source, seen).copy())
            p[list(forbidden)] = -math.inf
            p = p.softmax(-1)
            if place < len(one.drafted):
                q = torch.zeros_like(p)
                q[ids[place].tolist()] = torch.from_numpy(prob[place])
                q[list(forbidden)] = 0
                p = (1 - gamma) * p + gamma * q / q.sum()
            assert token == int(p.argmax())
            seen = (*seen, token)


def test_a_row_does_not_depend_on_other_rows_with_gamma(drafting) -> None:
    config = DecodeConfig(mode="tandem", gamma=0.6, max_new_tokens=20)
    for max_length in (None, 9):
        backend = drafting(max_length=max_length, skill=0.4)
        requests = [Request(source=(n % 4,), prompt=(2,) * (n % 5)) for n in range(12)]
        alone = [tandem(backend, [request], config)[0] for request in requests]
        assert tandem(backend, requests, config) == alone


def test_finished_rows_leave_the_batch(drafting) -> None:
    backend, stats = drafting(skill=1.0), Statistics()
    requests = [Request(max_new_tokens=n, prompt=(2,)) for n in (1, 1, 9)]
    config = DecodeConfig(mode="tandem", draft_tokens=2, min_new_tokens=9)
    tandem(backend, requests, config, stats=stats)
    assert backend.rows_computed == 3 + stats.rounds  # the prompts, then the unfinished row


def settled(drafting: float, *, rows: int) -> Controller:
    """A controller with estimates for drafting, next to plain steps of one second."""
    controller = Controller(6)
    for _ in range(4):
        for k, seconds in ((0, 1.0), (2, drafting), (4, drafting), (6, drafting)):
            controller.observe(rows, k, seconds)
        controller.observe_plain(rows, 1, 1.0)
    for _ in range(20):
        controller.observe_draft(6, 1)
    return controller


def test_drafting_is_switched_off_with_a_note(drafting) -> None:
    backend, stats = drafting(), Statistics()
    requests = [Request(source=(n,)) for n in range(3)]
    config = DecodeConfig(mode="tandem", max_new_tokens=9)
    found = tandem(backend, requests, config, controller=settled(9.0, rows=3), stats=stats)
    assert found == greedy(backend, requests, config)
    assert (stats.plain_rows, stats.rounds, backend.drafted) == (3, 0, 0)
    assert stats.notes == ["drafting was slower: some rows were decoded without it"]
    assert stats.seconds["plain"] > 0


def test_drafting_stops_if_nothing_is_accepted(drafting) -> None:
    backend, stats = drafting(skill=0.0), Statistics()
    requests = [Request(source=(n,)) for n in range(20)]
    config = DecodeConfig(mode="tandem", max_new_tokens=40, min_new_tokens=40)
    now = [0.0]

    def clock() -> float:
        now[0] += 1 + backend.drafted - now[1] if now[1:] else 1
        now[1:] = [backend.drafted]
        return now[0]

    tandem(backend, requests, config, controller=Controller(6, clock=clock), stats=stats)
    assert 0 < backend.drafted < 20


def test_a_requested_draft_length_is_always_used(drafting) -> None:
    backend, stats = drafting(), Statistics()
    config = DecodeConfig(mode="tandem", max_new_tokens=9, draft_tokens=3)
    tandem(backend, [Request()], config, controller=settled(50.0, rows=1), stats=stats)
    assert stats.plain_rows == 0
    assert len(stats.drafted) == 3


def test_a_model_without_a_drafter_is_refused() -> None:
    backend = TorchBackend(tiny.seq2seq())
    with pytest.raises(ModelError, match=r"^this model has no drafter, which mode tandem needs"):
        tandem(backend, [Request(source=(4, 1))], DecodeConfig(mode="tandem"))


def test_too_long_a_draft_is_refused(drafting) -> None:
    config = DecodeConfig(mode="tandem", draft_tokens=7)
    with pytest.raises(ConfigError, match=r"^draft_tokens: got 7, .* at most 6$"):
        tandem(drafting(), [Request()], config)


def test_no_requests_give_no_output(drafting) -> None:
    assert tandem(drafting(), [], DecodeConfig(mode="tandem")) == []


@pytest.fixture(scope="session")
def rounding(drafting) -> type:
    """A toy model with coarse scores that differ slightly if computed several at a time."""

    class Rounding(drafting):
        epsilon = 1e-3

        def take_in(self, tokens, state, *, last):
            exact = (4 * super().take_in(tokens, state, last=last)).round() / 4
            if len(tokens) == 1 and (len(tokens[0]) == 1 or last):
                return exact
            wrong = np.roll(np.linspace(-1, 1, self.vocab_size), len(tokens))
            return exact + 3 * self.epsilon * wrong

    return Rounding


def test_strict_equals_greedy_of_single_rows(rounding) -> None:
    requests = [Request(source=(n,), prompt=(2,) * (n % 3)) for n in range(40)]
    config = DecodeConfig(max_new_tokens=20)
    backend = rounding(skill=0.9)
    expected = [greedy(backend, [request], config)[0] for request in requests]
    loose = DecodeConfig(mode="tandem", max_new_tokens=20)
    stats, backend = Statistics(), rounding(skill=0.9)
    found = tandem(backend, requests, loose, stats=stats)
    assert found != expected
    assert stats.rechecked == 0
    passes = backend.extended
    strict = loose.changed(strict=True)
    assert tandem(backend, requests, strict, stats=stats) == expected
    assert stats.rechecked > 0
    # Ties of a row share one pass: at most each row's tokens once more, besides the rounds.
    walked = sum(len(h.tokens) + 1 for h in expected)
    assert backend.extended - passes <= passes + walked + 20
    busy, drafted = settled(9.0, rows=40), backend.drafted
    assert tandem(backend, requests, strict, controller=busy, stats=stats) == expected
    assert backend.drafted == drafted


@pytest.mark.parametrize("epsilon", [1e-3, 1e-7])
@pytest.mark.parametrize("strict", [False, True])
def test_timing_never_changes_the_text(rounding, epsilon, strict) -> None:
    """Plain steps, short and long blocks: without exact scores, rows are always drafted."""

    class Coarse(rounding):
        pass

    Coarse.epsilon = epsilon
    requests = [Request(source=(n,), prompt=(2,) * (n % 3)) for n in range(40)]
    config = DecodeConfig(mode="tandem", max_new_tokens=20, strict=strict)
    controllers = [settled(9.0, rows=40), settled(0.1, rows=40), Controller(6)]
    controllers += [Controller(6, clock=random_clock(seed)) for seed in range(4)]
    found, ways = [], set()
    for one in [None, *controllers]:
        backend = Coarse(skill=0.9)
        found.append(tandem(backend, requests, config, controller=one))
        ways.add(bool(backend.drafted))
    assert ways == ({True, False} if strict or epsilon == 1e-7 else {True})
    assert all(texts == found[0] for texts in found)


def test_near_ties_in_float32_are_always_recomputed(rounding) -> None:
    """Near-ties are rare in float32, so recomputing them is cheap."""

    class Fine(rounding):
        epsilon = 1e-7

    requests = [Request(source=(n,)) for n in range(40)]
    config = DecodeConfig(mode="tandem", max_new_tokens=20)
    expected = [greedy(Fine(skill=0.9), [request], config)[0] for request in requests]
    stats = Statistics()
    assert tandem(Fine(skill=0.9), requests, config, stats=stats) == expected
    assert stats.rechecked > 0


def test_strict_needs_at_most_three_times_the_calls_of_plain_decoding() -> None:
    """Seven rows with drafts that are always refused, and a few recomputed near-ties."""
    calls = [0]

    class Counted(TorchBackend):
        def extend(self, *inputs: Any, **options: Any) -> Any:
            calls[0] += 1
            return super().extend(*inputs, **options)

    model = tiny.seq2seq()
    backend = Counted(model, drafter=bad_drafter(model, 1))
    backend.epsilon = 4e-3
    requests = [Request(source=(3 + n % 9, 4 + n // 9, 1), max_new_tokens=30) for n in range(42)]
    found = []
    stats, made = Statistics(), []
    for config in (DecodeConfig(), DecodeConfig(mode="tandem", strict=True, draft_tokens=8)):
        calls[0] = 0
        found.append(decode(backend, requests, config, rows=7, stats=stats))
        made.append(calls[0])
    assert [[best.tokens for best in row] for row in found[0]] == [
        [best.tokens for best in row] for row in found[1]
    ]
    assert stats.rechecked > 0
    assert made[1] <= 3 * made[0]


@pytest.mark.parametrize(
    ("drafted", "confidence", "worth", "kept"),
    [
        ([[5, 6, 7]], [[0.9, 0.5, 0.5]], 0.0, 3),
        ([[5, 6, 7]], [[0.9, 0.5, 0.5]], 0.4, 2),  # 0.9, 0.45, 0.225
        ([[5, 6, 7]], [[0.1, 0.5, 0.5]], 0.4, 1),  # at least one, as an observation
        ([[5, 1, 7]], [[0.9, 0.9, 0.9]], 0.0, 2),  # 1 ends the text
        ([[9, 6, 7]], [[0.9, 0.9, 0.9]], 0.0, 1),  # so does 9
        ([[5, 1, 7], [5, 6, 7]], [[0.9, 0.9, 0.9]] * 2, 0.0, 3),
        ([[5, 1, 7], [5, 6, 7]], [[0.9, 0.9, 0.9]] * 2, 0.4, 2),  # at last, the mean is 0.36
        ([[5], [5, 6, 7]], [[0.9], [0.9, 0.9, 0.9]], 0.4, 2),  # so it is here
        ([[], [5, 6, 7]], [[], [0.9, 0.9, 0.9]], 0.4, 3),  # a row without drafts is not counted
        ([[], []], [[], []], 0.4, 1),
    ],
)
def test_the_number_of_verified_tokens(drafted, confidence, worth, kept) -> None:
    assert worth_verifying(drafted, confidence, min_survival=worth, ends=(1, 9)) == kept
