"""The reference backend with counters."""

from typing import Any

import pytest

from tests.helpers.reference_backend import ReferenceBackend


class Toy(ReferenceBackend):
    """A reference backend that counts its calls and rows."""

    def __init__(self, vocab_size: int = 6, max_length: int | None = None, *, table: int = 0, **o):
        super().__init__(vocab_size, max_length, seed=table, **o)
        self.rows_computed = 0
        self.extended = 0

    def take_in(self, tokens, state, *, last) -> Any:
        self.rows_computed += len(tokens)
        self.extended += 1
        return super().take_in(tokens, state, last=last)


@pytest.fixture(scope="session")
def toy() -> type[Toy]:
    return Toy
