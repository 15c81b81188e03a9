"""Token choice in a drafted block: numpy and torch agree, and both follow the equation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.torch.models.drafter import model as module
from outrider.torch.models.drafter.model import (
    Candidates,
    Choice,
    Steps,
    choose_all,
    choose_in_order,
)

WORDS, RANK = 17, 6


def make(
    rows: int, slots: int, count: int, dtype: torch.dtype = torch.float64
) -> tuple[Candidates, Steps, Tensor]:
    ids = torch.stack([torch.randperm(WORDS)[:count] for _ in range(rows * slots)])
    candidates = Candidates(ids.view(rows, slots, count), torch.randn(rows, slots, count))
    steps = Steps(
        torch.randn(rows, slots, RANK, dtype=dtype),
        torch.randn(rows, slots, count, RANK),
        torch.randn(WORDS, RANK, dtype=dtype),
        torch.randn(RANK, RANK, dtype=dtype),
    )
    return candidates, steps, torch.randint(WORDS, (rows,))


def make_choice(rows: int, slots: int, *, drawn: bool, known: bool) -> Choice:
    uniform = torch.rand(rows, slots, dtype=torch.float64) if drawn else None
    tokens = torch.randint(WORDS, (rows, slots))
    known_BK = tokens.masked_fill(torch.rand(rows, slots) < 0.7, -1) if known else None
    return Choice(0.8, uniform, known_BK)


@settings(max_examples=60)
@given(
    rows=st.integers(1, 8),
    slots=st.integers(1, 9),
    count=st.integers(1, WORDS),
    drawn=st.booleans(),
    known=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1 << 30),
)
def test_numpy_and_torch_choose_the_same_tokens(
    rows, slots, count, drawn, known, dtype, seed
) -> None:
    torch.manual_seed(seed)
    parts = make(rows, slots, count, dtype)
    choice = make_choice(rows, slots, drawn=drawn, known=known)
    before = [part.clone() for part in (*parts[0], *parts[1])]
    wanted = module._in_torch(*parts, choice)
    found = module._in_numpy(*parts, choice)
    assert found.tokens_BK.tolist() == wanted.tokens_BK.tolist()
    torch.testing.assert_close(found.score_BKC, wanted.score_BKC, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.state_BKR, wanted.state_BKR)
    for part, old in zip((*parts[0], *parts[1]), before, strict=True):
        assert torch.equal(part, old), "what it is given stays as it is"


@pytest.mark.parametrize("drawn", [False, True])
def test_one_row_equals_the_equation(drawn: bool) -> None:
    """The equation in plain Python, slot by slot."""
    candidates, steps, last = make(1, 5, 4)
    choice = make_choice(1, 5, drawn=drawn, known=False)
    found = choose_in_order(candidates, steps, last, choice)
    token, state = int(last[0]), [0.0] * RANK
    for i in range(5):
        before, row = state, steps.token_VR[token].tolist()
        state = [
            math.tanh(
                float(steps.inner_BKR[0, i, r])
                + row[r]
                + sum(before[q] * float(steps.state_RR[q, r]) for q in range(RANK))
            )
            for r in range(RANK)
        ]
        extra = steps.extra_BKCR[0, i].tolist()
        base = candidates.score_BKC[0, i].tolist()
        score = [
            b + sum(o * s for o, s in zip(row, state, strict=True))
            for b, row in zip(base, extra, strict=True)
        ]
        if choice.uniform_BK is None:
            pick = max(range(4), key=score.__getitem__)
        else:
            mass = [math.exp(z / 0.8) for z in score]
            level = (1 - float(choice.uniform_BK[0, i])) * sum(mass)
            pick = next(c for c in range(4) if sum(mass[: c + 1]) >= level)
        token = int(candidates.ids_BKC[0, i, pick])
        assert int(found.tokens_BK[0, i]) == token
        assert found.score_BKC[0, i].tolist() == pytest.approx(score, rel=1e-4, abs=1e-5)
        assert found.state_BKR[0, i].tolist() == pytest.approx(state, rel=1e-12)


def test_numpy_is_used_for_few_rows_of_supported_types(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    for name in ("numpy", "torch"):
        real = getattr(module, f"_in_{name}")
        monkeypatch.setattr(
            module, f"_in_{name}", lambda *a, f=real, n=name: used.append(n) or f(*a)
        )
    monkeypatch.setattr(module, "FEW_ROWS", 3)
    for rows, dtype in [(3, torch.float32), (4, torch.float32), (3, torch.bfloat16)]:
        choose_in_order(*make(rows, 2, 4, dtype), Choice())
    assert used == ["numpy", "torch", "torch"]


def test_without_a_state_all_slots_are_independent() -> None:
    candidates, _, _ = make(2, 3, 5)
    best = candidates.score_BKC.argmax(-1, keepdim=True)
    likeliest = candidates.ids_BKC.gather(-1, best)[..., 0]
    assert choose_all(candidates, Choice()).tolist() == likeliest.tolist()
    known = torch.tensor([[-1, 16, -1], [0, -1, -1]])
    stands = torch.where(known >= 0, known, likeliest)
    assert choose_all(candidates, Choice(known_BK=known)).tolist() == stands.tolist()
    drawn = [choose_all(candidates, Choice(uniform_BK=torch.full((2, 3), u))) for u in (0.0, 0.999)]
    assert drawn[0].tolist() == candidates.ids_BKC[..., -1].tolist()
    assert drawn[1].tolist() == candidates.ids_BKC[..., 0].tolist()
