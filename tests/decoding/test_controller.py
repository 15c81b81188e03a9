"""The controller chooses between plain steps and blocks; the test sets the clock."""

import random
from collections import Counter
from time import perf_counter

import pytest

from outrider.decoding import Controller, DecodeConfig, Request, Statistics, decode
from tests.helpers.reference_backend import ReferenceBackend


class Machine:
    """Plain steps of one second, and rounds whose time and acceptance the test sets."""

    def __init__(self, *, block: float, token: float = 0.05, chance: float = 0.8) -> None:
        self.block, self.token, self.chance = block, token, chance
        self.controller = Controller(8)
        self.dice = random.Random(1)
        self.cold: set[int] = set()
        self.noise = 0.0
        self.used: Counter[int] = Counter()

    def text(self, tokens: int = 20) -> tuple[float, int]:
        """Decode a text; return its seconds and its number of tokens from rounds with drafts."""
        controller, said, drafted, seconds = self.controller, 0, 0, 0.0
        if not controller.drafts(1):
            taken = tokens * self._disturbed(1.0)
            controller.observe_plain(1, tokens, taken)
            return taken, 0
        while said < tokens:
            k = controller.plan(1).tokens
            self.used[k] += 1
            held = 0
            while held < k and self.dice.random() < self.chance:
                held += 1
            taken = self._disturbed(self.block + self.token * k if k else 1.0)
            if k not in self.cold:  # the first call prepares kernels
                self.cold.add(k)
                taken *= 1.5
            controller.observe(1, k, taken, drafting=0.3 * self.block if k else 0.0, checked=k)
            if k:
                controller.observe_draft(k, held)
                drafted += held + 1
            said, seconds = said + held + 1, seconds + taken
        return seconds, drafted

    def texts(self, count: int) -> tuple[float, float]:
        """Decode texts; return their seconds and the share of tokens from rounds with drafts."""
        written = [self.text() for _ in range(count)]
        return sum(one for one, _ in written), sum(one for _, one in written) / (20 * count)

    def _disturbed(self, seconds: float) -> float:
        return seconds * (1 + self.noise * self.dice.random() ** 4)


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_it_drafts_if_that_is_faster(noise: float) -> None:
    machine = Machine(block=1.2)
    machine.noise = noise
    first_ten, _ = machine.texts(10)
    assert noise or first_ten < 10 * 20  # faster than plain within ten texts
    machine.texts(40)
    _, share = machine.texts(100)
    assert share > 0.85


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_it_does_not_draft_if_that_is_slower(noise: float) -> None:
    machine = Machine(block=2.5, chance=0.3)
    machine.noise = noise
    machine.texts(20)
    seconds, share = machine.texts(200)
    assert share < 0.05
    assert noise or seconds < 1.03 * 200 * 20


def test_the_first_text_is_little_slower_if_all_drafts_are_refused() -> None:
    """A text of 40 tokens with a few refused blocks, the first of them with unprepared kernels."""
    machine = Machine(block=1.3, chance=0.0)
    plain = 1.5 + 39
    assert machine.text(40)[0] < 1.1 * plain


@pytest.mark.parametrize("pays", [True, False])
def test_it_adapts_to_a_change(pays: bool) -> None:
    machine = Machine(block=1.2 if pays else 2.5, chance=0.8 if pays else 0.2)
    machine.texts(100)
    machine.block, machine.chance = (3.5, 0.2) if pays else (1.2, 0.8)
    machine.texts(150)
    _, share = machine.texts(100)
    assert share < 0.1 if pays else share > 0.85


@pytest.mark.parametrize(("token", "chance", "best"), [(0.02, 0.95, 8), (0.35, 0.6, 2)])
def test_the_fastest_block_length_is_chosen(token: float, chance: float, best: int) -> None:
    machine = Machine(block=0.8, token=token, chance=chance)
    machine.texts(100)
    assert machine.used[best] > 0.85 * machine.used.total()


def test_the_threshold_rises_with_the_cost_of_a_token() -> None:
    worth = []
    for token in (0.0, 0.05, 0.2):
        machine = Machine(block=1.2, token=token, chance=0.9)
        machine.texts(30)
        worth.append(machine.controller.plan(1).min_survival)
    assert worth == sorted(set(worth))
    assert worth[-1] < 1


def test_each_number_of_rows_has_separate_estimates() -> None:
    """With 32 rows drafting is slower; with one row it is faster."""
    controller = Controller(8)
    for _ in range(40):
        for rows, seconds in ((1, 1.5), (32, 30.0)):
            k = controller.plan(rows).tokens
            controller.observe(rows, k, seconds if k else float(rows) ** 0.5, checked=k)
            controller.observe_plain(rows, 1, float(rows) ** 0.5)
        controller.observe_draft(4, 3)
    assert (controller.drafts(1), controller.drafts(32)) == (True, False)


@pytest.mark.parametrize("longest", [1, 2, 3, 5, 8, 20])
def test_blocks_stay_within_the_limit_of_the_drafter(longest: int) -> None:
    controller = Controller(longest)
    seen = set()
    for _ in range(300):
        k = controller.plan(1).tokens
        seen.add(k)
        controller.observe(1, k, 1.0, checked=k)
        controller.observe_draft(k, k)
    assert max(seen) == controller.longest == min(longest, 8)


def test_a_stopped_clock() -> None:
    controller = Controller(8)
    for _ in range(50):
        k = controller.plan(1).tokens
        controller.observe(1, k, 0.0, checked=k)
        controller.observe_plain(1, 1, 0.0)
        controller.observe_draft(k, 1)
        controller.drafts(1)


class Timed(ReferenceBackend):
    """A backend whose passes advance a clock of the test."""

    now = 0.0

    def extend(self, tokens, state, query, **options):
        self.now += 1 + 0.05 * max(map(len, tokens))
        return super().extend(tokens, state, query, **options)


@pytest.mark.parametrize(("draft", "drafts"), [(0.3, True), (9.0, False)])
def test_a_session_uses_the_faster_mode(monkeypatch, draft: float, drafts: bool) -> None:
    backend = Timed(7, block=6, skill=0.95)
    source = type(backend.drafts).draft

    def timed(self, *inputs, **options):
        backend.now += draft
        return source(self, *inputs, **options)

    monkeypatch.setattr(type(backend.drafts), "draft", timed)
    controller = Controller(6, clock=lambda: backend.now)
    config = DecodeConfig(mode="tandem", max_new_tokens=16, min_new_tokens=16)
    last = Statistics()
    for n in range(40):
        request = [Request(source=(n % 7, n % 5))]
        stats = last if n >= 20 else None
        found = decode(backend, request, config, controllers={"drafter": controller}, stats=stats)
        assert found == decode(backend, request, config.changed(mode="ar"))
    assert (last.plain_rows < 6) if drafts else (last.plain_rows > 14)


def test_the_controller_is_fast() -> None:
    controller = Controller(8)
    began = perf_counter()
    for _ in range(1000):
        k = controller.plan(1).tokens
        controller.observe(1, k, 1.0, checked=k)
        controller.observe_draft(k, 2)
    assert perf_counter() - began < 0.5
