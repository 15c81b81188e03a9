"""Positional correlation: queries and keys know those of their neighbours.

    y_i = x_i + sum_d c_d * x_(i-d)        d = 0 .. W-1; in an encoder around i

A convolution along the text with a filter of its own for every channel of every head, over what was
projected to queries and keys. The trained c is zero at the start, so a model begins without it.
Where the pattern does not look ahead, neither does the filter.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.torch.nn.cache import SLACK
from outrider.torch.nn.cache.ring import Ring

__all__ = ["Correlation"]


class Correlation(nn.Module):
    """Filters of width W over E channels."""

    def __init__(self, width: int, channels: int, *, ahead: bool) -> None:
        super().__init__()
        self.width = width
        self.ahead = (width - 1) // 2 if ahead else 0
        self.back = width - 1 - self.ahead
        self.filter_WE = nn.Parameter(torch.zeros(width, channels))
        """The first row is for the token furthest back."""

    def reset(self) -> None:
        """Start as the identity."""
        nn.init.zeros_(self.filter_WE)

    def pad(self, x_BTE: Tensor) -> Tensor:
        """Put nothing before and after whole texts."""
        return F.pad(x_BTE, (0, 0, self.back, self.ahead))

    def forward(self, padded_BSE: Tensor) -> Tensor:
        """Filter texts that have `back` vectors before them and `ahead` after."""
        tokens = padded_BSE.shape[1] - self.width + 1
        y_BTE = padded_BSE[:, self.back : self.back + tokens]
        for place in range(self.width):
            y_BTE = y_BTE + self.filter_WE[place] * padded_BSE[:, place : place + tokens]
        return y_BTE

    def new_ring(self, rows: int, capacity: int, slack: int = SLACK) -> Ring:
        """Return room for what the filters look back at while decoding."""
        return Ring(rows, capacity, back=self.back, like=self.filter_WE, slack=slack)
