"""Linear layers with an optional packed copy of the weight for faster CPU products.

PyTorch repacks a weight at every call. For one or two rows reading the weight dominates; from 8
rows on, float32 products with a large weight packed once were 1.2 to 2.3 times as fast. Small
weights stay in the cache, where the packed product is up to twice as slow
(`lab/studies/packing.py`), so they are never packed. Packing doubles the memory of a weight, and a
packed weight must not be trained, so it is done on request only.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PACKED_FROM = 8
"""Minimum rows for the packed copy of a large weight."""
LARGE = 1 << 19
"""Elements of a large weight: 2048 x 256."""
SMALL = 1 << 18
"""Weights with fewer elements are not packed; between the two limits the minimum rows double."""


class Linear(nn.Linear):
    """`nn.Linear` with an optional packed weight."""

    packed: Tensor | None = None

    def pack_weight(self) -> None:
        """Keep a packed copy of the weight, if it is large enough."""
        self.packed = pack(self.weight)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        """Return `input @ weight.T + bias`."""
        return product(input, self.weight, self.bias, self.packed)


def pack_layers(module: nn.Module) -> None:
    """Pack the weights of all linear layers of a module."""
    for layer in module.modules():
        if isinstance(layer, Linear):
            layer.pack_weight()


def product(x: Tensor, weight: Tensor, bias: Tensor | None, packed: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias`, through the packed weight where that is faster."""
    least = PACKED_FROM if weight.numel() >= LARGE else 2 * PACKED_FROM
    if packed is None or x.numel() < least * x.shape[-1]:
        return F.linear(x, weight, bias)
    return _packed_product(x, packed, bias)


def pack(weight: Tensor) -> Tensor | None:
    """Pack a weight for this CPU (see `packable`); None for a small weight."""
    if weight.numel() < SMALL:
        return None
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return packed


def _packed_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out


def packable(weight: Tensor) -> bool:
    """Whether PyTorch can pack this weight."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
