"""Positional MLP: similarity of a token to those just before it, added before the first layer.

    z_i = x_i + p_i        c_i[d] = z_i . z_(i-d) / sqrt(D)   d = 0 .. W-1        z_i + MLP(c_i)

x is the embedding and p the position encoding. (The product of two sinusoidal encodings alone
depends on d only.) The last matrix starts at zero.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.torch.nn.linear import Linear

WIDER = 4
"""Hidden units per product."""


class PositionMlp(nn.Module):
    """Reads W - 1 earlier tokens, also in encoders."""

    def __init__(self, window: int, width: int) -> None:
        super().__init__()
        self.window = window
        self.up = Linear(window, WIDER * window)
        self.down_DN = nn.Parameter(torch.zeros(width, WIDER * window))

    def reset(self) -> None:
        """Initialise to the identity."""
        nn.init.zeros_(self.down_DN)

    def pad(self, z_BTD: Tensor) -> Tensor:
        """Pad whole texts with zeros in front."""
        return F.pad(z_BTD, (0, 0, self.window - 1, 0))

    def forward(self, padded_BSD: Tensor) -> Tensor:
        """Run texts with W - 1 vectors in front."""
        tokens = padded_BSD.shape[1] - self.window + 1
        z_BTD = padded_BSD[:, self.window - 1 :]
        starts = range(self.window - 1, -1, -1)
        near = [(z_BTD * padded_BSD[:, at : at + tokens]).sum(-1) for at in starts]
        c_BTW = torch.stack(near, dim=-1) * z_BTD.shape[-1] ** -0.5
        return z_BTD + F.linear(F.gelu(self.up(c_BTW)), self.down_DN)
