"""One Transformer layer: self-attention, cross-attention where there is a source, feed-forward.

Each part sits in a residual (`nn.layer.residual`), with a norm before it or after the sum.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from outrider.nn.cache import Cache, Step
from outrider.nn.layer.feedforward import FeedForward
from outrider.nn.layer.heads import CrossAttention, SelfAttention, Source
from outrider.nn.layer.residual import GATE_BIAS, Residual, build_residual
from outrider.nn.norm import NormKind
from outrider.nn.position import Positions

__all__ = ["Block"]


class Block(nn.Module):
    """A layer of an encoder (no cross-attention), a decoder, or a language model."""

    def __init__(
        self,
        attention: SelfAttention,
        feedforward: FeedForward,
        *,
        width: int,
        norm: str,
        dropout: float,
        cross: CrossAttention | None = None,
        residual: str = "add",
        gate_bias: float = GATE_BIAS,
        norm_kind: NormKind | None = None,
    ) -> None:
        super().__init__()

        def join() -> Residual:
            return build_residual(
                residual,
                width,
                norm=norm,
                dropout=dropout,
                gate_bias=gate_bias,
                norm_kind=norm_kind,
            )

        self.attention = attention
        self.attention_residual = join()
        self.cross = cross
        self.cross_residual = join() if cross else None
        self.feedforward = feedforward
        self.feedforward_residual = join()
        self.recompute = False
        """Keep only the input for the backward, and compute the rest again there."""

    def forward(
        self,
        x_BTD: Tensor,
        positions: Positions,
        keep_BT: Tensor | None = None,
        source: Source | None = None,
    ) -> Tensor:
        """One whole pass from position 0."""
        return self.run(x_BTD, lambda h: self.attention(h, positions, keep_BT), source)

    def extend(self, x_BTD: Tensor, cache: Cache, step: Step, source: Source | None) -> Tensor:
        """Append tokens to the cache and run them through the layer."""
        return self.run(x_BTD, lambda h: self.attention.extend(h, cache, step), source)

    def run(
        self, x_BTD: Tensor, attention: Callable[[Tensor], Tensor], source: Source | None
    ) -> Tensor:
        """Run the layer with some form of its self-attention."""
        if self.recompute and torch.is_grad_enabled():
            again: Tensor = checkpoint(self._run, x_BTD, attention, source, use_reentrant=False)
            return again
        return self._run(x_BTD, attention, source)

    def _run(
        self, x_BTD: Tensor, attention: Callable[[Tensor], Tensor], source: Source | None
    ) -> Tensor:
        for residual, part in self.parts(attention, source):
            x_BTD = residual(x_BTD, part)
        return x_BTD

    def parts(
        self, attention: Callable[[Tensor], Tensor], source: Source | None
    ) -> Iterator[tuple[Residual, Callable[[Tensor], Tensor]]]:
        """List what a token goes through, each part with its residual."""
        yield self.attention_residual, attention
        if self.cross is not None and self.cross_residual is not None:
            assert source is not None, "a layer with cross-attention needs a source"
            cross = self.cross
            yield self.cross_residual, lambda h: cross(h, source)
        yield self.feedforward_residual, self.feedforward
