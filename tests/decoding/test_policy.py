"""The choice of k: against trying every k, and what it learns from."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from outrider.backends.torch import TorchBackend, TorchDrafts
from outrider.decoding import DecodeConfig, DraftPolicy, Request, decode
from outrider.decoding.costs import SIZES, STEPS, Costs, fit_costs, smooth
from outrider.decoding.policy import PRIOR
from outrider.errors import ResourceError
from outrider.models import Drafter, DrafterConfig

seconds = st.floats(1e-4, 1.0)


def policy(plain: float = 1.0, extend: float = 1.0, slope: float = 0.1, draft: float = 0.1):
    costs = Costs(
        plain, tuple(extend + slope * m for m in range(9)), tuple(draft for _ in range(8))
    )
    return DraftPolicy({1: costs})


def speeds(costs: Costs, chances: list[float], drafts: list[float]) -> list[float]:
    """Tokens a second for k = 0, 1, ...: the formula of the module, written out."""
    found = []
    for k in range(len(chances) + 1):
        product, tokens = 1.0, 1.0
        for chance in chances[:k]:
            product *= chance
            tokens += product
        found.append(tokens / ((drafts[k - 1] if k else 0.0) + costs.extend[k]))
    return found


@given(
    extend=st.lists(seconds, min_size=6, max_size=6),
    draft=st.lists(seconds, min_size=5, max_size=5),
    hold=st.lists(st.floats(0.01, 1), min_size=5, max_size=5),
)
def test_the_plan_is_the_best_of_all(extend, draft, hold) -> None:
    costs = Costs(1.0, tuple(extend), tuple(draft))
    policy = DraftPolicy({1: costs})
    policy.acceptance = hold
    found = speeds(costs, hold, draft)
    assert found[policy.plan(1).tokens] == pytest.approx(max(found))


@given(first=seconds, more=seconds, draft=seconds, hold=st.lists(st.floats(0.01, 0.99), min_size=8))
def test_a_draft_is_verified_as_far_as_it_pays(first, more, draft, hold) -> None:
    """Where one token more costs the same everywhere, and the drafter is rightly sure."""
    costs = Costs(1.0, tuple(first + more * k for k in range(9)), (draft,) * 8)
    one = DraftPolicy({1: costs})
    one.acceptance = hold[:8]
    plan = one.plan(1)
    survival = torch.tensor(one.acceptance, dtype=torch.float64).cumprod(0).tolist()
    found = speeds(costs, one.acceptance, [draft] * 8)
    kept = sum(chance >= plan.min_survival for chance in survival)
    if plan.tokens:
        assert found[max(kept, 1)] == pytest.approx(max(found))


def test_dearer_tokens_must_be_surer() -> None:
    worth = [policy(slope=slope).plan(1).min_survival for slope in (0.0, 0.02, 0.1, 0.2)]
    assert worth[0] == 0
    assert worth == sorted(set(worth))


def test_costs_are_interpolated_between_rows_and_beyond() -> None:
    known = {n: Costs(n, (n, 2.0 * n), (3.0 * n,)) for n in (1, 2, 8)}
    for rows in (1, 2, 5, 8, 40):
        plain, extend, draft, _ = DraftPolicy(known).costs(rows)
        assert [plain, *extend, *draft] == pytest.approx([rows, rows, 2 * rows, 3 * rows])
    alone = DraftPolicy({4: Costs(1.0, (2.0, 3.0), (4.0,))})
    assert alone.costs(8) == Costs(2.0, (4.0, 6.0), (8.0,))


def test_disturbed_measurements_are_smoothed() -> None:
    measured = {
        1: Costs(9.0, (5.0, 2.0, 3.0), (1.0, 7.0)),
        2: Costs(4.0, (2.5, 9.0, 8.0), (6.0, 6.0)),
    }
    assert smooth(measured) == {
        1: Costs(2.0, (2.0, 2.0, 3.0), (1.0, 6.0)),
        2: Costs(2.5, (2.5, 8.0, 8.0), (6.0, 6.0)),
    }


def test_drafting_pays_where_a_block_costs_little_more_than_a_token() -> None:
    busy = Costs(1.0, tuple(float(m) for m in range(1, 10)), (0.5,) * 8)
    one = DraftPolicy({1: policy().costs(1), 32: busy})
    assert one.pays(1, length=20)
    assert not one.pays(32, length=20)
    assert (one.plan(1).tokens > 1, one.plan(32).tokens) == (True, 0)


def test_short_rows_do_not_pay_for_a_drafter_that_reads_the_source_long() -> None:
    slow = DraftPolicy({1: policy().costs(1)._replace(open=8.0)})
    assert not slow.pays(1, length=6)
    assert slow.pays(1, length=60)


def test_a_drafter_that_is_never_right_is_dropped_and_tried_again() -> None:
    one = policy()
    for _ in range(400):
        one.learn(8, 0)
    assert one.plan(1).tokens == 0
    assert not one.pays(1, length=20)
    batches = 0
    while not one.pays(1, length=20):
        one.relax()
        batches += 1
    assert 2 < batches < 40


def test_what_was_seen_moves_the_estimate() -> None:
    one = policy()
    for _ in range(600):
        for accepted in (2, 2, 4):
            one.learn(6, accepted)
    assert one.acceptance[:2] == pytest.approx([1, 1], abs=0.01)
    assert one.acceptance[2] == pytest.approx(1 / 3, abs=0.1)
    assert one.acceptance[3] == pytest.approx(1, abs=0.02)
    assert one.acceptance[4] < 0.01
    assert one.acceptance[5:] == [PRIOR] * 3  # never judged


@given(
    rows=st.sampled_from([1, 8, 32]),
    noise=st.lists(st.floats(1e-6, 1.0), min_size=20, max_size=20),
    longest=st.integers(1, 12),
    asked=st.integers(1, 500),
)
def test_no_disturbance_makes_a_cost_negative(rows, noise, longest, asked) -> None:
    """Whatever was timed, followed as far as anybody asks."""
    seconds = iter(noise)
    drafts = sorted({*(k for k in SIZES if k < longest), longest})[: 2 if rows == 32 else 9]
    least = {("plain", 1): next(seconds), ("extend", 1): next(seconds)}
    least |= {("draft", k): next(seconds) for k in drafts}
    least |= {("extend", k + 1): next(seconds) for k in drafts}
    least |= {("open", 0): next(seconds), ("open for drafting", 0): next(seconds)}
    one = fit_costs(least, longest)
    other = one._replace(plain=next(seconds), open=next(seconds))
    costs = DraftPolicy(smooth({1: one, rows + 1: other})).costs(asked)
    assert min(costs.plain, *costs.extend, *costs.draft) > 0
    assert costs.open >= 0
    assert list(costs.extend) == sorted(costs.extend)
    assert list(costs.draft) == sorted(costs.draft)


def test_calls_are_timed_as_the_loops_make_them(monkeypatch) -> None:
    """A block right after its draft, a draft after a block, and plain steps in a row."""
    model = tiny.seq2seq()
    drafter = Drafter(DrafterConfig.for_target(model.config, rank=4, candidates=5))

    class Listening(TorchBackend):
        heard: list[tuple[str, int, bool]] = []  # noqa: RUF012 - one backend, one list

        def extend(self, tokens, state, ask, **options):
            self.heard.append(("extend", len(tokens[0]), state.drafter is not None))
            return super().extend(tokens, state, ask, **options)

    backend, draft = Listening(model, drafter=drafter), TorchDrafts.draft

    def listen(self, newest, state, tokens, **options):
        backend.heard.append(("draft", max(tokens), True))
        return draft(self, newest, state, tokens, **options)

    monkeypatch.setattr(TorchDrafts, "draft", listen)
    DraftPolicy.measure(backend)
    heard = backend.heard
    drafts = [place for place, call in enumerate(heard) if call[0] == "draft"]
    assert {heard[place][1] for place in drafts} == {1, 2, 4, 8, 12}
    for place in drafts:
        assert heard[place + 1] == ("extend", heard[place][1] + 1, True)
        assert heard[place - 1][0] == "extend"
        assert heard[place - 1][2]
    plain = ("extend", 1, False)
    starts = [n for n, call in enumerate(heard) if call == plain and heard[n - 1] != plain]
    assert len(starts) >= 6
    assert all(heard[n : n + STEPS] == [plain] * STEPS for n in starts)


@pytest.mark.parametrize("positions", [1, 2, 3, 5])
@pytest.mark.parametrize("maker", [tiny.seq2seq, tiny.language_model])
def test_models_of_few_positions_are_measured(maker, positions) -> None:
    model = maker(position="learned", max_positions=positions)
    drafter = Drafter(DrafterConfig.for_target(model.config, rank=4, candidates=5))
    backend = TorchBackend(model, drafter=drafter)
    length = 0 if maker is tiny.language_model else 24
    found = DraftPolicy.measure(backend, longest_source=length)
    assert found.plan(1).tokens <= max(0, positions - 1)
    source = () if maker is tiny.language_model else (4, 1)[-positions:]
    config = DecodeConfig(mode="tandem", min_new_tokens=9)
    (row,) = decode(backend, [Request(source=source)], config, policy=found)
    assert len(row[0].tokens) == positions


def test_the_reason_not_to_draft_is_the_real_one() -> None:
    busy = Costs(1.0, tuple(float(m) for m in range(1, 10)), (0.5,) * 8)
    one = DraftPolicy({1: policy().costs(1), 32: busy})
    assert one.objection(1, length=20) is None
    assert one.objection(32, length=20) == "so many rows at once keep this machine busy"
    assert policy(draft=50.0).objection(1, length=20) == "drafting costs more time than it saves"
    assert policy(draft=50.0).objection(9, length=20) == "drafting costs more time than it saves"
    for _ in range(400):
        one.learn(8, 0)
    assert one.objection(1, length=20) == "drafts held too rarely"
    assert one.objection(4, length=20) == "drafts held too rarely"
    assert one.objection(32, length=20) == "so many rows at once keep this machine busy"


@pytest.mark.parametrize("maker", [tiny.seq2seq, tiny.language_model])
@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_measures_a_model_in_about_a_second(maker, position) -> None:
    model = maker(position=position, max_positions=16)
    drafter = Drafter(DrafterConfig.for_target(model.config, rank=4, candidates=5))
    backend = TorchBackend(model, drafter=drafter)
    started = time.process_time()
    length = 0 if maker is tiny.language_model else 6
    found = DraftPolicy.measure(backend, longest_source=length)
    assert time.process_time() - started < 10
    for rows in (1, 3, 64):
        costs = found.costs(rows)
        assert len(costs.extend) == len(costs.draft) + 1 == len(found.acceptance) + 1
        assert len(costs.draft) == (12 if position == "sinusoidal" else 7)
        if rows < 4:
            assert costs.plain > 0
            assert 0 < costs.draft[0] <= costs.draft[-1]
            assert costs.extend[0] > 0
            assert list(costs.extend) == sorted(costs.extend)


def test_plans_stay_within_what_was_measured() -> None:
    one = policy(slope=0.0)
    one.acceptance = [1.0] * 8
    assert one.plan(1) == (8, 0.0)


def test_too_little_memory_to_measure_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> list[int]:
        raise MemoryError

    monkeypatch.setattr("outrider.decoding.policy.own_text", fails)
    with pytest.raises(ResourceError, match=r"measuring what drafts cost: .* mode ar"):
        DraftPolicy.measure(TorchBackend(tiny.seq2seq()))
