"""Out of memory while decoding: the error names the options to lower."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from outrider.decoding import DecodeConfig, Request, decode
from outrider.errors import ResourceError

HUGE = 1 << 50


def python_runs_out() -> object:
    raise MemoryError


def cuda_runs_out() -> object:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


SHORTAGES: list[Callable[[], object]] = [
    lambda: torch.empty(HUGE),
    lambda: torch.empty(HUGE, HUGE),
    lambda: np.empty(HUGE),
    python_runs_out,
    cuda_runs_out,
]


@pytest.fixture
def backend(toy):
    class Greedy(toy):
        fail: Callable[[], object]

        def extend(self, *inputs, **options):
            self.fail()

    return Greedy()


@pytest.mark.parametrize("fail", SHORTAGES)
@pytest.mark.parametrize(
    ("options", "lower"),
    [
        ({}, "batch_tokens or max_new_tokens"),
        ({"beams": 9}, r"batch_tokens or beams \(9\) or max_new_tokens"),
        ({"max_new_tokens": 7}, r"batch_tokens or max_new_tokens \(7\)"),
    ],
)
def test_every_kind_of_shortage_gives_one_error_message(backend, fail, options, lower) -> None:
    backend.fail = fail
    message = f"^decoding 2 rows at once: the machine ran out of memory; lower {lower}$"
    with pytest.raises(ResourceError, match=message):
        decode(backend, [Request(), Request()], DecodeConfig(**options))


def test_one_row_names_no_batch_size(backend) -> None:
    backend.fail = python_runs_out
    with pytest.raises(ResourceError, match=r"^decoding 1 row at once: .*; lower max_new_tokens$"):
        decode(backend, [Request()], DecodeConfig())


def test_other_errors_are_unchanged(backend) -> None:
    def fail() -> object:
        raise RuntimeError("expected scalar type Long but found Float")

    backend.fail = fail
    with pytest.raises(RuntimeError, match="scalar type"):
        decode(backend, [Request()], DecodeConfig())
