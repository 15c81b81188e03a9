"""Positional correlation: short convolutions over queries and keys.

    y_i = x_i + sum_d c_d * x_(i-d)        d = 0 .. W-1; in an encoder around i

A depthwise convolution along the text over the projected queries and keys. The trained c starts at
zero. The filter looks ahead only if the attention pattern does.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.torch.nn.cache import SLACK
from outrider.torch.nn.cache.ring import Ring


class Correlation(nn.Module):
    """Filters of width W over E channels."""

    def __init__(self, width: int, channels: int, *, ahead: bool) -> None:
        super().__init__()
        self.width = width
        self.ahead = (width - 1) // 2 if ahead else 0
        self.back = width - 1 - self.ahead
        self.filter_WE = nn.Parameter(torch.zeros(width, channels))
        """The first row is for the oldest token."""

    def reset(self) -> None:
        """Initialise to the identity."""
        nn.init.zeros_(self.filter_WE)

    def pad(self, x_BTE: Tensor) -> Tensor:
        """Pad whole texts with zeros on both sides."""
        return F.pad(x_BTE, (0, 0, self.back, self.ahead))

    def forward(self, padded_BSE: Tensor) -> Tensor:
        """Filter texts with `back` vectors in front and `ahead` behind."""
        tokens = padded_BSE.shape[1] - self.width + 1
        y_BTE = padded_BSE[:, self.back : self.back + tokens]
        for place in range(self.width):
            y_BTE = y_BTE + self.filter_WE[place] * padded_BSE[:, place : place + tokens]
        return y_BTE

    def new_ring(self, rows: int, capacity: int, slack: int = SLACK) -> Ring:
        """Return a ring for the vectors the filters read while decoding."""
        return Ring(rows, capacity, back=self.back, like=self.filter_WE, slack=slack)
