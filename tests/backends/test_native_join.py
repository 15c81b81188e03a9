"""Rows join and leave a native state at any time; each is bit-identical to decoding it alone."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding.queries import Logits
from tests.helpers import native_tiny

core = pytest.importorskip("outrider_native", reason="outrider-native is not installed")

from outrider.backends.native import NativeBackend  # noqa: E402
from outrider.torch.models.folder import parts_of  # noqa: E402

LONGEST = 12
SETS = core.instruction_sets()


def build(kind: str, seed: int, **options: Any) -> NativeBackend:
    model = native_tiny.build(kind, seed=seed)
    return NativeBackend(parts_of(model, native_tiny.build_drafter(model)), **options)


class Alone:
    """The results of one row, computed token by token in a separate state."""

    def __init__(self, backend: NativeBackend, source: list[int]) -> None:
        self.backend, self.source = backend, source

    def state(self, tokens: list[int]) -> Any:
        state = self.backend.encode([self.source], capacity=2 * LONGEST, drafting=True)
        for token in tokens:
            self.backend.extend([[token]], state, Logits())
        return state

    def logits(self, tokens: list[int], new: list[int]) -> list[list[float]]:
        state = self.state(tokens)
        return [self.backend.extend([[t]], state, Logits())[0, 0].tolist() for t in new]

    def draft(self, tokens: list[int], newest: int, count: int, numbers: list[float]) -> Any:
        draws = [numbers] if numbers else None
        drafts = self.backend.drafts
        assert drafts is not None
        return drafts.draft([newest], self.state(tokens), [count], uniform=draws)


@settings(max_examples=40)
@given(
    kind=st.sampled_from(["marian", "silu", "learned", "text rotary"]),
    seed=st.integers(0, 2**16),
    instruction_set=st.sampled_from(SETS),
    threads=st.sampled_from([1, 1, 2, 3]),
    data=st.data(),
)
def test_a_row_is_the_same_wherever_it_joins(kind, seed, instruction_set, threads, data) -> None:
    plain = build(kind, seed, threads=1, instruction_set="portable")
    backend = build(kind, seed, threads=threads, instruction_set=instruction_set)
    drafts, word = backend.drafts, st.integers(0, backend.vocab_size - 1)
    assert drafts is not None

    def pick(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    def open_some(count: int) -> tuple[list[Any], Any]:
        lengths = [pick(1, 9) for _ in range(count)]
        source = native_tiny.rows(native_tiny.build(kind), lengths, pick(0, 99))
        room = [pick(LONGEST, 2 * LONGEST) for _ in range(count)]
        opened = backend.encode(source, capacity=room, drafting=True)
        rows = [[Alone(plain, one), [], 0, most] for one, most in zip(source, room, strict=True)]
        return rows, opened

    rows, state = open_some(pick(1, 3))
    for _ in range(pick(1, 8)):
        action = pick(0, 4)
        if action == 0:
            more, opened = open_some(pick(1, 3))
            at, free = [], data.draw(st.permutations(range(len(rows))))[: pick(0, len(rows))]
            for row in more:
                at.append(free.pop() if free else len(rows))
                rows[at[-1] : at[-1] + 1] = [row]
            state.join(opened, at)
            assert opened.lengths == []
        elif action == 1 and rows:
            kept = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5))
            state.select(kept)
            rows = [[*rows[row]] for row in kept]
        elif action == 2 and rows:
            fed = [
                data.draw(st.lists(word, max_size=min(4, most - len(tokens))))
                for _, tokens, _, most in rows
            ]
            logits_BTV = backend.extend(fed, state, Logits())
            for row, new, logits_TV in zip(rows, fed, logits_BTV, strict=True):
                assert logits_TV[: len(new)].tolist() == row[0].logits(row[1], new)
                if new:
                    row[1], row[2] = row[1] + new, len(row[1])
        elif action == 3:
            lengths = [pick(before, len(tokens)) for _, tokens, before, _ in rows]
            state.rollback(lengths)
            for row, length in zip(rows, lengths, strict=True):
                row[1] = row[1][:length]
        elif rows:
            counts = [pick(0, min(4, most - len(tokens))) for _, tokens, _, most in rows]
            newest = [data.draw(word) for _ in rows]
            numbers = [[pick(0, 63) / 64 for _ in range(pick(0, 1) * n)] for n in counts]
            found = drafts.draft(newest, state, counts, uniform=numbers)
            ids_BKC, prob_BKC = found.probabilities
            for n, (alone, tokens, _, _) in enumerate(rows):
                if not counts[n]:
                    assert found.tokens[n] == found.confidence[n] == []
                    continue
                wanted = alone.draft(tokens, newest[n], counts[n], numbers[n])
                assert (found.tokens[n], found.confidence[n]) == (
                    wanted.tokens[0],
                    wanted.confidence[0],
                )
                assert (ids_BKC[n, : counts[n]] == wanted.probabilities.ids_BKC[0]).all()
                assert (prob_BKC[n, : counts[n]] == wanted.probabilities.prob_BKC[0]).all()
                assert not prob_BKC[n, counts[n] :].any()
        assert state.lengths == [len(tokens) for _, tokens, _, _ in rows]


def test_rows_have_separate_capacities() -> None:
    backend = build("marian", 0, threads=1)
    state = backend.encode([[3, 1], [4, 1]], capacity=[20, 40], drafting=True)
    assert state.core.capacities == [20, 40]
    small, large = (backend.encode([[3, 1]], capacity=room, drafting=True) for room in (20, 40))
    assert state.nbytes == small.nbytes + large.nbytes
    small.join(large, [1])
    assert (small.core.capacities, large.nbytes) == ([20, 40], 0)


CHURN = """
import random, re
from tests.helpers import native_tiny
from outrider.backends.native import NativeBackend
from outrider.decoding.queries import Argmax
from outrider.torch.models.folder import parts_of

model = native_tiny.build("plain")
backend = NativeBackend(parts_of(model, native_tiny.build_drafter(model)), threads=1)
dice, rows, report = random.Random(0), 0, []
resident = lambda: int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])

def open_some(count):
    source = [[3] * dice.randint(1, 5) for _ in range(count)]
    return backend.encode(source, capacity=[dice.randint(1, 300) for _ in source], drafting=True)

state = open_some(64)
while rows < 100_000:
    keep = [row for row in range(64) if dice.random() < 0.5]
    free = [row for row in range(64) if row not in keep]
    if dice.random() < 0.5:  # they leave, and others come
        state.select(keep)
        state.join(open_some(len(free)), list(range(len(keep), 64)))
    elif free:  # others take their places
        state.join(open_some(len(free)), free)
    rows += len(free)
    if dice.random() < 0.02:
        backend.extend([[5]] * 64, state, Argmax())
    if rows // 10_000 > len(report):
        report.append((state.nbytes, backend.core.idle_bytes, resident() << 10))
for numbers in report:
    print(*numbers)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="this system does not tell what a process has"
)
def test_memory_does_not_grow_over_a_hundred_thousand_rows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHURN],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = [[int(value) for value in line.split()] for line in done.stdout.splitlines()]
    held, idle, resident = zip(*report, strict=True)
    assert len(report) == 10
    assert max(idle) <= 64 << 20
    assert max(held[5:]) <= 1.5 * max(held[:5])
    assert max(resident[5:]) - max(resident[:5]) < 8 << 20, resident
