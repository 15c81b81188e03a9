"""The position-wise feed-forward layer, plain or gated (Shazeer, 2020, arXiv:2002.05202).

plain   W2 f(W1 x)          gated   W2 (f(W1 x) * W3 x)

With chunks (Kitaev et al., 2020, arXiv:2001.04451) positions are processed in groups, and training
recomputes each chunk in the backward, so the inner activations never exist for all positions.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from outrider.errors import ConfigError, nearest
from outrider.torch.nn.cache import Cache, Step
from outrider.torch.nn.dropout import dropout
from outrider.torch.nn.linear import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
FEW = 64
"""Up to this many positions are not chunked outside training: every chunk reads all weights."""


class FeedForward(nn.Module):
    """Two matrix products with a non-linearity between, applied to every position."""

    def __init__(
        self,
        width: int,
        inner: int,
        *,
        activation: str,
        gated: bool = False,
        dropout: float = 0.0,
        chunks: int = 1,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            hint = nearest(activation, ACTIVATIONS)
            expected = ", ".join(ACTIVATIONS)
            raise ConfigError(
                "activation", f"unknown {activation!r}{hint}; expected one of {expected}"
            )
        self.activation = ACTIVATIONS[activation]
        self.gated = gated
        self.dropout = dropout
        self.chunks = chunks
        self.up = Linear(width, inner * (2 if gated else 1))
        self.down = Linear(inner, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Run all positions, at once or chunk by chunk."""
        if self.chunks == 1 or not (self.training or x_BTD.shape[-2] > FEW):
            return self._run(x_BTD)
        pieces = x_BTD.chunk(self.chunks, dim=-2)
        if not torch.is_grad_enabled():
            return torch.cat([self._run(piece) for piece in pieces], dim=-2)
        outputs = [checkpoint(self._run, piece, use_reentrant=False) for piece in pieces]
        return torch.cat(outputs, dim=-2)

    def whole_pass(self, keep_BT: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return the function for a whole pass; `keep_BT` marks real tokens."""
        return self

    def cached_pass(self, cache: Cache, step: Step) -> tuple[Cache, Callable[[Tensor], Tensor]]:
        """Return the cache of the attention, and the function for the tokens of a step."""
        return cache, self

    def extend_cache(self, cache: Cache, rows: int, capacity: int, slack: int) -> Cache:
        """Add to the cache of the attention what this layer keeps."""
        return cache

    def inner(self, x_BTD: Tensor) -> Tensor:
        """Return the inner activations."""
        up = self.up(x_BTD)
        if not self.gated:
            return self.activation(up)
        x, gate = up.chunk(2, dim=-1)
        return self.activation(x) * gate

    def _run(self, x_BTD: Tensor) -> Tensor:
        return self.down(dropout(self.inner(x_BTD), self.dropout, self.training))
