"""One Transformer layer: self-attention, optional cross-attention, feed-forward.

Each part has a residual connection (`nn.layer.residual`) with a norm before it or after the sum.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from outrider.torch.nn.cache import SLACK, Cache, Step
from outrider.torch.nn.layer.feedforward import FeedForward
from outrider.torch.nn.layer.heads import CrossAttention, SelfAttention, Source
from outrider.torch.nn.layer.residual import Residual
from outrider.torch.nn.position import Positions

Sublayer = Callable[[Tensor], Tensor]


class Sublayers(NamedTuple):
    """The parts of a layer that depend on other tokens, for whole texts or for cached tokens."""

    attention: Sublayer
    """Self-attention or a recurrent layer."""
    transition: Sublayer
    """Feed-forward or separable convolution."""


class Block(nn.Module):
    """A layer of an encoder (no cross-attention), a decoder, or a language model."""

    def __init__(
        self,
        attention: SelfAttention,
        feedforward: FeedForward,
        *,
        residual: Callable[[], Residual],
        cross: CrossAttention | None = None,
    ) -> None:
        """Build a layer; `residual` creates the residual connection of each part."""
        super().__init__()
        self.attention = attention
        self.attention_residual = residual()
        self.cross = cross
        self.cross_residual = residual() if cross else None
        self.feedforward = feedforward
        self.feedforward_residual = residual()
        self.recompute = False
        """Store only the input for the backward, and recompute the layer there."""

    def forward(
        self,
        x_BTD: Tensor,
        positions: Positions,
        keep_BT: Tensor | None = None,
        source: Source | None = None,
    ) -> Tensor:
        """Run a whole pass from position 0."""
        form = self.whole_pass(positions, keep_BT)
        return self.run(x_BTD, form.attention, source, form.transition)

    def extend(self, x_BTD: Tensor, cache: Cache, step: Step, source: Source | None) -> Tensor:
        """Append tokens to the cache and run them through the layer."""
        form = self.cached_pass(cache, step)
        return self.run(x_BTD, form.attention, source, form.transition)

    def whole_pass(self, positions: Positions, keep_BT: Tensor | None) -> Sublayers:
        """Return the sublayers of a whole pass from position 0."""
        return Sublayers(
            lambda h: self.attention(h, positions, keep_BT), self.feedforward.whole_pass(keep_BT)
        )

    def cached_pass(self, cache: Cache, step: Step) -> Sublayers:
        """Return the sublayers that append tokens to the cache."""
        inner, transition = self.feedforward.cached_pass(cache, step)
        return Sublayers(lambda h: self.attention.extend(h, inner, step), transition)

    def new_cache(self, rows: int, capacity: int, slack: int = SLACK) -> Cache:
        """Return the empty cache of this layer."""
        cache = self.attention.new_cache(rows, capacity, slack)
        return self.feedforward.extend_cache(cache, rows, capacity, slack)

    def run(
        self,
        x_BTD: Tensor,
        attention: Sublayer,
        source: Source | None,
        transition: Sublayer | None = None,
    ) -> Tensor:
        """Run the layer with this self-attention and transition."""
        inputs = (x_BTD, attention, source, transition)
        if self.recompute and torch.is_grad_enabled():
            y_BTD: Tensor = checkpoint(self._run, *inputs, use_reentrant=False)
            return y_BTD
        return self._run(*inputs)

    def _run(
        self, x_BTD: Tensor, attention: Sublayer, source: Source | None, transition: Sublayer | None
    ) -> Tensor:
        for residual, part in self.parts(attention, source, transition):
            x_BTD = residual(x_BTD, part)
        return x_BTD

    def parts(
        self, attention: Sublayer, source: Source | None, transition: Sublayer | None = None
    ) -> Iterator[tuple[Residual, Sublayer]]:
        """Yield the parts in order, each with its residual."""
        yield self.attention_residual, attention
        if self.cross is not None and self.cross_residual is not None:
            assert source is not None, "a layer with cross-attention needs a source"
            cross = self.cross
            yield self.cross_residual, lambda h: cross(h, source)
        yield self.feedforward_residual, transition or self.feedforward
