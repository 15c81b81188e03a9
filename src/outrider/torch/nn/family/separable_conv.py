"""Separable convolutions in place of the feed-forward (Dehghani et al., 2018, arXiv:1807.03819).

    u_i = sum_d a_d * x_(i-d)                a_d a number for every channel
    h_i = f(W1 u_i + b1)                     gated   f(W1 u_i + b1) * (W3 u_i + b3)
    y_i = W2 (sum_d c_d * h_(i-d)) + b2      c_d a number for every inner unit

Each filter is a depthwise convolution along the text, each matrix mixes the channels of a position;
together they form a separable convolution (Chollet, 2017). In a decoder d is 0 .. W-1, in an
encoder it is centred at 0; beyond the text x and h are zero. A filter starts as the identity, so a
new layer is a plain feed-forward.

Decoding keeps the last W - 1 vectors of both filters of every row.
"""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from outrider.torch.nn.cache import Cache, Step
from outrider.torch.nn.cache.ring import Ring, RingedCache
from outrider.torch.nn.dropout import dropout
from outrider.torch.nn.layer.correlation import Correlation
from outrider.torch.nn.layer.feedforward import FeedForward


class SeparableConv(FeedForward):
    """A feed-forward with a short convolution before each product."""

    def __init__(
        self,
        width: int,
        inner: int,
        *,
        activation: str,
        widths: Sequence[int],
        ahead: bool,
        gated: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, inner, activation=activation, gated=gated, dropout=dropout)
        first, second = widths
        self.outer_filter = Correlation(first, width, ahead=ahead)
        self.inner_filter = Correlation(second, inner, ahead=ahead)

    def forward(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> Tensor:
        """Run whole texts; `keep_BT` marks real tokens; padding is masked."""

        def convolve(near: Correlation, x_BTE: Tensor) -> Tensor:
            if keep_BT is not None:
                x_BTE = x_BTE.masked_fill(~keep_BT[..., None], 0)
            return near(near.pad(x_BTE))

        return self._convolve(x_BTD, convolve)

    def extend(self, x_BTD: Tensor, rings: Sequence[Ring], step: Step) -> Tensor:
        """Filter the tokens of a step behind the vectors in the rings."""
        ring_of = dict(zip((self.outer_filter, self.inner_filter), rings, strict=True))
        return self._convolve(x_BTD, lambda near, x_BTE: near(ring_of[near].extend(x_BTE, step)))

    def whole_pass(self, keep_BT: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return the function for a whole pass; padding is masked."""
        return partial(self, keep_BT=keep_BT)

    def cached_pass(self, cache: Cache, step: Step) -> tuple[Cache, Callable[[Tensor], Tensor]]:
        """Return the cache of the attention, and the function that reads the rings."""
        assert isinstance(cache, RingedCache), "the cache of another layer"
        return cache.inner, partial(self.extend, rings=cache.rings, step=step)

    def extend_cache(self, cache: Cache, rows: int, capacity: int, slack: int) -> Cache:
        """Add a ring for each filter."""
        filters = (self.outer_filter, self.inner_filter)
        return RingedCache(cache, [each.new_ring(rows, capacity, slack) for each in filters])

    def _convolve(self, x_BTD: Tensor, convolve: Callable[[Correlation, Tensor], Tensor]) -> Tensor:
        h_BTF = self.inner(convolve(self.outer_filter, x_BTD))
        h_BTF = dropout(h_BTF, self.dropout, self.training)
        return self.down(convolve(self.inner_filter, h_BTF))
