"""Small tiles, so that short test sequences are divided as long ones are."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules

import pytest
import torch
from torch import Tensor

from outrider.torch.nn import attention
from outrider.torch.nn.attention import HeadShape, adaptive_span, build_attention, fixed, tiled
from outrider.torch.nn.attention.tiled import TiledAttention
from outrider.torch.nn.kernel import merge
from tests.helpers.attention_equation import assert_same_with_gradient, equation, heads


@contextmanager
def small_tiles() -> Iterator[None]:
    """Use the tiled path at every length, with blocks of 4 queries and groups of 12.

    `DENSE_UP_TO` in files of `nn/attention` is the length up to which one dense pass is faster.
    """
    with pytest.MonkeyPatch.context() as patch:
        for file in iter_modules(attention.__path__, f"{attention.__name__}."):
            module = import_module(file.name)
            if hasattr(module, "DENSE_UP_TO"):
                patch.setattr(module, "DENSE_UP_TO", 0)
        patch.setattr(tiled, "SHARE", 2.0)
        patch.setattr(tiled, "BLOCK", 4)
        patch.setattr(fixed, "GROUP", 12)
        patch.setattr(adaptive_span, "BLOCKS", (4, 8, 8))
        patch.setattr(merge, "BUDGET", 128)
        yield


def largest_product(of: TiledAttention, length: int) -> int:
    """Return the most query-key pairs in one tile during a complete pass."""
    largest = 0
    real = merge._calls

    def calls(*arguments):
        nonlocal largest
        for row, part, tile in real(*arguments):
            largest = max(largest, tile.queries.size * tile.keys.size * (not tile.causal))
            yield row, part, tile

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "_calls", calls)
        of(*(x.detach() for x in heads(1, of.shape.heads, length, 4)))
    assert largest, "no tile was computed"
    return largest


def assert_equation(spec: dict, *, causal: bool, length: int, real: int, sees, seed: int) -> None:
    """Check that tiles and their gradients equal one head under `sees(i, j)`, written as loops."""
    q, k, v = heads(length, 3, seed=seed)
    real = length if causal else min(real, length)
    keep = (torch.arange(length) < real)[None]
    one = build_attention(spec, causal=causal, shape=HeadShape(1, 1, 3)).eval()
    with small_tiles():
        fast = one(*(x[None, None] for x in (q, k, v)), keep_BT=keep)[0, 0, :real]

    def visible(i: int, j: int) -> bool:
        return j < real and sees(i, j) and (j <= i or not causal)

    assert_same_with_gradient(fast, equation(q[:real], k, v, visible), (q, k, v))


def seen_by_loops(length: int, sees) -> Tensor:
    """Return a pattern as a table."""
    return torch.tensor([[bool(sees(i, j)) for j in range(length)] for i in range(length)])
