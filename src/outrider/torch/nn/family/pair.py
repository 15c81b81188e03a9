"""Pair attention: additional attention among the encoder's outputs.

    a_i  = softmax over j of (Q x_i) . (K x_j) / sqrt(D)
    g_i  = softmax over j of t a_ij                         smooths the weights
    p_i  = sum over j of g_ij x_j                           j: every real position but the last one
    y_i  = x_i + (W x_0) * x_i + U p_i

x_0 is the first state of the row, which scales the channels of all others. W and U start at zero,
so y = x; t is a trained number that starts at 1. The last real position is the end token, which is
masked as a partner.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.torch.nn.linear import Linear


class PairAttention(nn.Module):
    """Attention with a number, not a vector, per pair of positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query_key = Linear(width, 2 * width)
        self.sharpness = nn.Parameter(torch.ones(()))
        """t."""
        self.gate_DD = nn.Parameter(torch.zeros(width, width))
        """W."""
        self.mix_DD = nn.Parameter(torch.zeros(width, width))
        """U."""

    def reset(self) -> None:
        """Initialise to the identity."""
        nn.init.ones_(self.sharpness)
        nn.init.zeros_(self.gate_DD)
        nn.init.zeros_(self.mix_DD)

    def forward(self, x_BSD: Tensor, keep_BS: Tensor | None = None) -> Tensor:
        """Return the new states; `keep_BS` marks real positions."""
        gate_B1D = F.linear(x_BSD[:, :1], self.gate_DD)
        pooled_BSD = self.weights(x_BSD, keep_BS).to(x_BSD.dtype) @ x_BSD
        return x_BSD + gate_B1D * x_BSD + F.linear(pooled_BSD, self.mix_DD)

    def weights(self, x_BSD: Tensor, keep_BS: Tensor | None = None) -> Tensor:
        """Return g of every pair, [B, S, S]; all zeros for rows of one token."""
        q_BSD, k_BSD = self.query_key(x_BSD).chunk(2, dim=-1)
        score_BSS = q_BSD @ k_BSD.transpose(1, 2) * q_BSD.shape[-1] ** -0.5
        real_BS = _all(x_BSD) if keep_BS is None else keep_BS
        # Finite, so that a row without partners does not become NaN.
        lowest = torch.finfo(score_BSS.dtype).min
        once_BSS = score_BSS.masked_fill(~real_BS[:, None], lowest).softmax(-1)
        partner_B1S = _without_last(real_BS)[:, None]
        twice_BSS = (self.sharpness * once_BSS).masked_fill(~partner_B1S, lowest).softmax(-1)
        return twice_BSS * partner_B1S


def _all(x_BSD: Tensor) -> Tensor:
    return torch.ones(x_BSD.shape[:2], dtype=torch.bool, device=x_BSD.device)


def _without_last(real_BS: Tensor) -> Tensor:
    """Clear the last real position of every right-padded row."""
    return real_BS & F.pad(real_BS[:, 1:], (0, 1))
