"""Coordinate positions (Universal Transformer, Dehghani et al., 2018, arXiv:1807.03819).

    x_p + [sin(p f), cos(p f)] + [sin(t f), cos(t f)]        before layer t = 1, 2, ...

Every layer adds the encodings of a token's position and of the layer's depth.
"""

import torch
from torch import Tensor, nn

from outrider.torch.nn.position import Positions, SineTable


class CoordinatePosition(nn.Module):
    """The sum of the encodings of position and depth."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = SineTable(width)

    def forward(self, x_BTD: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        """Add both encodings to the input of a layer, counted from 0."""
        depth = Positions(torch.full((1, 1), layer + 1, device=x_BTD.device), layer + 2)
        position_BTD = torch.cat(self.table.look_up(positions, x_BTD), dim=-1)
        return x_BTD + position_BTD + torch.cat(self.table.look_up(depth, x_BTD), dim=-1)
