"""One Transformer layer: self-attention, cross-attention where there is a source, feed-forward.

Each part sits in a residual, with the norm before it or after the sum:

    pre    x + f(norm(x))           post   norm(x + f(x))
"""

from collections.abc import Callable

from torch import Tensor, nn

from outrider.nn.cache import Cache, Step
from outrider.nn.dropout import dropout
from outrider.nn.feedforward import FeedForward
from outrider.nn.heads import CrossAttention, SelfAttention, Source
from outrider.nn.position import Positions

__all__ = ["Block", "Residual"]


class Residual(nn.Module):
    """Adds what a part computed to what it was given."""

    def __init__(self, width: int, *, norm: str, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.pre = norm == "pre"
        self.dropout = dropout

    def forward(self, x_BTD: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Run `part` inside the residual."""
        y_BTD = part(self.norm(x_BTD) if self.pre else x_BTD)
        y_BTD = x_BTD + dropout(y_BTD, self.dropout, self.training)
        return y_BTD if self.pre else self.norm(y_BTD)


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
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = Residual(width, norm=norm, dropout=dropout)
        self.cross = cross
        self.cross_residual = Residual(width, norm=norm, dropout=dropout) if cross else None
        self.feedforward = feedforward
        self.feedforward_residual = Residual(width, norm=norm, dropout=dropout)

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
        x_BTD = self.attention_residual(x_BTD, attention)
        if self.cross is not None and self.cross_residual is not None:
            assert source is not None, "a layer with cross-attention needs a source"
            cross = self.cross
            x_BTD = self.cross_residual(x_BTD, lambda h: cross(h, source))
        return self.feedforward_residual(x_BTD, self.feedforward)
