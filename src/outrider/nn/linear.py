"""A linear layer that can keep a second copy of its weight in the layout this CPU multiplies best.

PyTorch lays a weight out anew at every call. For one or two rows that does not matter, because
reading the weight is the work; from 8 rows on, float32 products against a weight packed once were
1.1 to 1.6 times as fast here (`benchmarks/packing.py`). Packing doubles the memory of the weights,
and a packed weight must not be trained any more, so it is only done on request.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Linear", "pack", "packable", "product"]

PACKED_FROM = 8
"""Rows from which the packed copy is used."""


class Linear(nn.Linear):
    """`nn.Linear`, and after `pack_weight` faster for several rows."""

    packed: Tensor | None = None

    def pack_weight(self) -> None:
        """Keep a packed copy of the weight."""
        self.packed = pack(self.weight)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        """Return `input @ weight.T + bias`."""
        return product(input, self.weight, self.bias, self.packed)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, packed: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias`, through the packed weight where that is faster."""
    if packed is None or x.numel() < PACKED_FROM * x.shape[-1]:
        return F.linear(x, weight, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out


def pack(weight: Tensor) -> Tensor:
    """Lay a weight out for this CPU; see `packable`."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return packed


def packable(weight: Tensor) -> bool:
    """Whether this PyTorch can pack such a weight."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
