"""Counts what PyTorch computes and holds while it does: FLOPs, and the bytes of living tensors.

Every operation passes through here, below autograd. A tensor's storage is noted when it is made and
forgotten when nobody holds it any more, so after a forward pass what is left is exactly what the
backward will need, whoever keeps it. `torch.autograd.graph.saved_tensors_hooks` would see less and
more: not what a checkpoint keeps to compute again (`feedforward_chunks`), but what a reversible
layer has let go already.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

__all__ = ["Live"]

_ATEN = torch.ops.aten


def _attention_flops(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(q.shape, k.shape, v.shape))  # type: ignore[no-untyped-call]


def _attention_backward_flops(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any
) -> int:
    shapes = (g.shape, q.shape, k.shape, v.shape)
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


_CPU: dict[Any, Callable[..., int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}
"""Attention as a CPU computes it, which PyTorch's own counter leaves out."""


def _tensors(values: Any) -> list[Tensor]:
    leaves = tree_leaves(values)
    return [one for one in leaves if isinstance(one, Tensor) and one.layout is torch.strided]


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, counts FLOPs and notes the tensors that are made."""

    def __init__(self, part: Callable[[], str]) -> None:
        """Start with nothing; `part` says whose tensors are made now."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.peak = 0
        """Most bytes held at once."""
        self.left_out: set[torch.Size] = set()
        """Shapes of tensors that are not counted, such as gradients of weights."""
        self._part = part
        self._made: dict[int, tuple[Any, int, str]] = {}
        """Weak references to storages, their bytes and parts."""

    def held(self) -> Counter[str]:
        """Return the bytes that are held now, by part."""
        self._made = {key: one for key, one in self._made.items() if not one[0].expired()}
        found: Counter[str] = Counter()
        for _, nbytes, part in self._made.values():
            found[part] += nbytes
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and note what came out."""
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet in _CPU:
            self.flops += _CPU[packet](*args)
        elif packet in flop_registry:
            count: Any = flop_registry[packet]
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        given = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(out):
            if tensor.untyped_storage()._cdata not in given:  # else it is a view, or was changed
                self._note(tensor)
        return out

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._made or tensor.shape in self.left_out:
            return
        weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._made[key] = (weak, storage.nbytes(), self._part())
        self.peak = max(self.peak, self.held().total())
