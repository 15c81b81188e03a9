"""A toy model whose logits are a fixed table over (source, tokens so far), with real row state."""

import random
from functools import lru_cache

import pytest
import torch
from torch import Tensor


@lru_cache(maxsize=200_000)
def toy_logits(table: int, vocab: int, source: tuple, tokens: tuple) -> tuple[float, ...]:
    """Deterministic, with no two alike: what a row says depends on that row alone."""
    numbers = random.Random(hash((table, source, tokens)))
    return tuple(numbers.gauss(0, 2) for _ in range(vocab))


class ToyState:
    def __init__(self, rows: list[tuple[tuple, tuple]], capacity: int) -> None:
        self.rows, self.capacity, self.group = rows, capacity, 1

    @property
    def length_B(self) -> Tensor:
        return torch.tensor([len(tokens) for _, tokens in self.rows])

    def rollback(self, length_B: Tensor) -> None:
        self.rows = [(s, t[:n]) for (s, t), n in zip(self.rows, length_B.tolist(), strict=True)]

    def select(self, row_N: Tensor) -> None:
        self.rows = [self.rows[n] for n in row_N.tolist()]
        for start in range(0, len(self.rows), self.group):
            assert len({s for s, _ in self.rows[start : start + self.group]}) == 1

    def fan(self, beams: int) -> "ToyState":
        state = ToyState([row for row in self.rows for _ in range(beams)], self.capacity)
        state.group = beams
        return state


class ToyBackend:
    start, eos, ends, pad = 0, 1, (1,), 0

    def __init__(self, vocab_size: int = 6, max_length: int | None = None, table: int = 0) -> None:
        self.vocab_size, self.max_length, self.table = vocab_size, max_length, table
        self.rows_computed = 0

    def encode(self, source, *, capacity: int) -> ToyState:
        assert self.max_length is None or capacity <= self.max_length
        return ToyState([(tuple(ids), ()) for ids in source], capacity)

    def extend(self, tokens_BT, state, *, count_B=None, last=False) -> Tensor:
        assert len(tokens_BT) == len(state.rows)
        self.rows_computed += len(state.rows)
        counts = [tokens_BT.shape[1]] * len(tokens_BT) if count_B is None else count_B.tolist()
        out = torch.full((*tokens_BT.shape, self.vocab_size), float("nan"))
        for n, (row, count) in enumerate(zip(tokens_BT.tolist(), counts, strict=True)):
            source, seen = state.rows[n]
            for t in range(count):
                seen = (*seen, row[t])
                out[n, t] = torch.tensor(self.logits(source, seen))
            state.rows[n] = (source, seen)
            assert len(seen) <= state.capacity
        if not last:
            return out
        return out[torch.arange(len(out)), torch.tensor(counts) - 1][:, None]

    def logits(self, source: tuple, seen: tuple) -> tuple[float, ...]:
        return toy_logits(self.table, self.vocab_size, source, seen)


@pytest.fixture(scope="session")
def toy() -> type[ToyBackend]:
    return ToyBackend
