"""Residual connections.

    add    pre    x + f(norm(x))
           post   norm(x + f(x))
    gru    y = relu(f(norm(x)))
           r = s(W_r y + U_r x)            z = s(W_z y + U_z x - b)         s the logistic function
           h = tanh(W_h y + U_h (r * x))
           (1 - z) * x + z * h

`gru` is the gate of GTrXL (Parisotto et al., 2019, arXiv:1910.06764). With a large initial b, z is
near zero, so a new layer is close to the identity.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from outrider.torch.nn.dropout import dropout
from outrider.torch.nn.linear import Linear
from outrider.torch.nn.norm import NormKind

RESIDUALS = ("add", "gru", "reversible")
GATE_BIAS = 6.5
"""Initial b: a layer then changes inputs of unit variance by less than a hundredth."""


class Residual(nn.Module):
    """Adds the output of a part to its input."""

    def __init__(
        self, width: int, *, norm: str, dropout: float, kind: NormKind | None = None
    ) -> None:
        super().__init__()
        self.norm = (kind or NormKind()).build(width)
        self.pre = norm == "pre"
        self.dropout = dropout

    def enter(self, x_BTD: Tensor) -> Tensor:
        """Return the input of a part."""
        normed_BTD: Tensor = self.norm(x_BTD) if self.pre else x_BTD
        return normed_BTD

    def branch(self, x_BTD: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the output of `part` before it is added."""
        return dropout(part(self.enter(x_BTD)), self.dropout, self.training)

    def forward(self, x_BTD: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Run `part` inside the residual."""
        y_BTD = x_BTD + self.branch(x_BTD, part)
        return y_BTD if self.pre else self.norm(y_BTD)


class GatedResidual(Residual):
    """Mixes the output of a part with its input by learned gates."""

    def __init__(
        self,
        width: int,
        *,
        dropout: float,
        gate_bias: float = GATE_BIAS,
        kind: NormKind | None = None,
    ) -> None:
        super().__init__(width, norm="pre", dropout=dropout, kind=kind)
        self.from_part = Linear(width, 3 * width, bias=False)
        """W of r, z and h, stacked."""
        self.from_stream = Linear(width, 2 * width, bias=False)
        """U of r and z, stacked."""
        self.from_reset = Linear(width, width, bias=False)
        """U of h."""
        self.first_bias = float(gate_bias)
        self.bias_D = nn.Parameter(torch.full((width,), self.first_bias))

    def reset(self) -> None:
        """Initialise the gates to closed."""
        nn.init.constant_(self.bias_D, self.first_bias)

    def forward(self, x_BTD: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Run `part` and mix its output in."""
        y_BTD = self.branch(x_BTD, part).relu()
        r_part, z_part, h_part = self.from_part(y_BTD).chunk(3, dim=-1)
        r_stream, z_stream = self.from_stream(x_BTD).chunk(2, dim=-1)
        r_BTD = (r_part + r_stream).sigmoid()
        z_BTD = (z_part + z_stream - self.bias_D).sigmoid()
        h_BTD = (h_part + self.from_reset(r_BTD * x_BTD)).tanh()
        return torch.lerp(x_BTD, h_BTD.to(x_BTD.dtype), z_BTD.to(x_BTD.dtype))


def build_residual(
    kind: str,
    width: int,
    *,
    norm: str,
    dropout: float,
    gate_bias: float = GATE_BIAS,
    norm_kind: NormKind | None = None,
) -> Residual:
    """Build the residual of one part; reversible stacks use plain ones."""
    if kind == "gru":
        return GatedResidual(width, dropout=dropout, gate_bias=gate_bias, kind=norm_kind)
    return Residual(width, norm=norm, dropout=dropout, kind=norm_kind)
